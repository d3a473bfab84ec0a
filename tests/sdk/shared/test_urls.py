"""A password in a URL goes to the server that it is for, and is shown nowhere."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from slipstream.cli import main
from slipstream.config import Config
from slipstream.settings import EngineConfig, ModelRoute
from slipstream.shared.log import setup_logging
from slipstream.shared.urls import has_password, split_login, without_password

SECRET = "s3cr3t"
URLS = [
    f"http://user:{SECRET}@host:8000/v1",
    f"https://{SECRET}@host/x",
    f"postgresql://user:{SECRET}@host:5432/db?sslmode=require",
    f"postgresql://host/db?user=u&password={SECRET}&x=1",
    f"postgresql:///db?password={SECRET}",
    f"host=h user=u password={SECRET} dbname=d",
    f"password='{SECRET} x' host=h",
    f"https://host/x?api_key={SECRET}",
    f"https://host/x?a=b&token={SECRET}#f",
    f"https://host/x#access_token={SECRET}&a=b",
    f"http://user:it's-{SECRET}@host:8000",
    f"http://user:un/escaped?{SECRET}@host:8000/v1",
    f"//user:{SECRET}@host/x",
    f"https://host/v1?key={SECRET}",
    f"https://host/x?a=b&X-Amz-Signature={SECRET}",
    f"https://host/x?client_secret={SECRET}&sig=1",
    f'host=h password = "{SECRET} x"',
]


@pytest.mark.parametrize("url", URLS)
def test_a_password_is_hidden_wherever_it_stands(url: str) -> None:
    for text in (url, f"cannot reach {url}: refused", f"('{url}', 1)", f'"{url}"'):
        assert SECRET not in without_password(text) and "***" in without_password(text)
    assert has_password(url) and "host" in without_password(url) or "db" in without_password(url)


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8000/v1",
        "postgresql://user@host/db",
        "a@b.c",
        "key=e1 token=4",
        "http://h/a@b?x=1",
        "5 tokens=7",
        "http://host:80/tiny@1",
        "http://[::1]:80/a@b",
        "http://host:80: tiny@1",
        "see //a@b",
    ],
)
def test_what_has_none_stays_as_it_is(text: str) -> None:
    assert without_password(text) == text and not has_password(text)


@given(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=4))
def test_any_password(word: str) -> None:
    word = f"pw{word}"
    assert word not in without_password(f"http://u:{word}@{'h'}/ and postgresql://h/d?password={word}")


def test_long_texts_are_read_in_good_time() -> None:
    for text in ("a" * 200_000, "//" * 100_000, "http://" + "a:" * 100_000, "password " * 30_000):
        began = time.process_time()
        without_password(text)
        assert time.process_time() - began < 5


def test_an_engines_address_is_its_name_and_its_password_is_sent() -> None:
    engine = EngineConfig(urls=[f"http://user:{SECRET}@one:1/v1/", "http://two:2"])
    assert engine.urls == ["http://one:1", "http://two:2"]
    assert engine.headers("http://one:1/health") == {"authorization": "Basic dXNlcjpzM2NyM3Q="}
    assert engine.headers("http://one:11") == engine.headers("http://two:2") == {}
    again = EngineConfig.model_validate_json(engine.model_dump_json())
    assert again.headers("http://one:1") == engine.headers("http://one:1")
    assert EngineConfig(urls=["http://two:2"], api_key="k").headers("http://two:2") == {"authorization": "Bearer k"}
    assert split_login("http://a%40b:c%3Ad@h/x") == ("http://h/x", "a@b:c:d")


def test_two_credentials_for_one_engine_are_refused_by_name() -> None:
    with pytest.raises(ValidationError, match=r"password for http://one:1, and engine.api_key is set") as e:
        EngineConfig(urls=[f"http://user:{SECRET}@one:1"], api_key="k")
    assert SECRET not in str(e.value.errors()[0]["msg"])
    with pytest.raises(ValidationError, match="api_key_env"):
        ModelRoute(upstream=f"https://user:{SECRET}@api.test/v1")


TREE = f"""
data_dir = "DATA"
[engine]
urls = ["http://user:{SECRET}@127.0.0.1:1", "http://127.0.0.1:2"]
[store]
url = "postgresql://127.0.0.1/db?user=u&password={SECRET}"
"""


@pytest.mark.parametrize("form", [[], ["--plain"], ["--json"]])
def test_the_configuration_shows_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: list[str]) -> None:
    file = tmp_path / "slipstream.toml"
    file.write_text(TREE.replace("DATA", str(tmp_path)))
    assert main(["config", "--config", str(file), *form]) == 0
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err and "127.0.0.1:2" in said.out
    file.write_text(TREE.replace("DATA", str(tmp_path)).replace("[store]", 'api_key = "k"\n[store]'))
    assert main(["config", "--config", str(file)]) == 2
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err and "engine.api_key" in said.err


@pytest.mark.parametrize("form", ["console", "json"])
def test_logs_show_none(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("SLIPSTREAM_LOG_FORMAT", form)
    setup_logging()
    for url in URLS:
        try:
            raise OSError(f"cannot reach {url}")
        except OSError:
            logging.getLogger("part").exception("%s is away", url, extra={"upstream": url})
    err = capsys.readouterr().err
    assert SECRET not in err and "is away" in err
    if form == "json":
        assert all(json.loads(line) for line in err.splitlines())


def test_the_children_get_it(tmp_path: Path) -> None:
    config = Config.model_validate({"data_dir": str(tmp_path), "engine": {"urls": [f"http://u:{SECRET}@h:1"]}})
    again = Config.model_validate_json(config.model_dump_json())
    assert again.engine.urls == ["http://h:1"] and again.engine.headers("http://h:1") == config.engine.headers(
        "http://h:1"
    )
