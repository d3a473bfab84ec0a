"""Each finding with its fix, against an engine that says what vLLM says."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path

import pytest
from tests.support import free_port
from tests.support.doctored import CHOICE, config, engine, levels, refuse
from tests.support.served import Served
from tests.support.server import Reply, Seen, Server, serve
from tests.support.text_engines import Hosted, LlamaCpp, LMStudio, Ollama, TextEngine

from slipstream.config import Config
from slipstream.operate.doctor.doctor import examine
from slipstream.operate.doctor.engine import check_engine, check_router
from slipstream.operate.run.preflight import untrainable


def test_a_good_engine(server: Server, tmp_path: Path) -> None:
    found = list(check_engine(server.url, engine(server, f"data_dir={tmp_path}/new")))
    assert [f.what for f in found] == [
        f"engine {server.url} serves inbox (vLLM 0.32.0)",
        "the engine takes adapters at run time",
        "the engine takes adapters up to rank 16; trainer.lora_rank is 16",
        "token ids and log-probabilities come back",
        "the engine samples as the model likes where a call says nothing",
    ]
    assert levels(found) == ["ok"] * 5
    asked = server.asked("POST", "/v1/chat/completions")[0].json
    assert (asked["return_token_ids"], asked["logprobs"], asked["model"]) == (True, True, "inbox")
    assert not (tmp_path / "new").exists(), "the doctor leaves nothing behind"


@pytest.mark.parametrize(
    ("changed", "what", "fix"),
    [
        ({"lora": Reply({"detail": "Not Found"}, 404)}, "takes no adapters at run time", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        ({"lora": Reply({"error": {"message": "Method Not Allowed"}}, 405)}, "takes no adapters", "VLLM_ALLOW_RUNTIME"),
        ({"lora": Reply({"error": {"message": "LoRA is not enabled. Use --enable-lora"}}, 500)}, "LoRA is off", "--enable-lora"),
        ({"lora": Reply({"error": "unauthorized"}, 401)}, "refuses the key", "engine.api_key"),
        ({"chat": Reply({"choices": [CHOICE | {"token_ids": None}]})}, "the engine returns no token ids", "return_token_ids"),
        ({"chat": Reply({"choices": [CHOICE | {"logprobs": None}]})}, "no log-probabilities", "--max-logprobs"),
        ({"chat": Reply({"error": {"message": "no chat template"}}, 400)}, "a chat completion failed", "chat template"),
        ({"chat": Reply({"choices": []})}, "a chat completion failed", "chat template"),
        ({"models": Reply({"data": [{"id": "other"}]})}, "serves no model inbox", "one of: other"),
        ({"models": Reply({"error": "unauthorized"}, 401)}, "refuses the key", "engine.api_key"),
        ({"models": Reply(b"<html>")}, "does not answer", "engine.urls"),
        ({"models": Reply({"x": 1})}, "does not answer", "engine.urls"),
        ({"version": Reply({"version": "0.9.2"})}, "vLLM 0.9.2 is too old to return token ids", "0.11"),
        ({"lora": partial(refuse, max_rank=8)}, "up to rank 8, and trainer.lora_rank is 16", "--max-lora-rank 16"),
    ],
)  # fmt: skip
def test_an_engine_that_lacks_something(server: Server, tmp_path: Path, changed: dict, what: str, fix: str) -> None:
    found = list(check_engine(server.url, engine(server, f"data_dir={tmp_path}", **changed)))
    bad = [f for f in found if f.level != "ok"]
    assert levels(bad) == ["fail"]
    assert what in bad[0].what
    assert fix in bad[0].fix


def test_an_engine_that_samples_by_a_generation_config(server: Server, tmp_path: Path) -> None:
    settings = engine(server, f"data_dir={tmp_path}")
    server.routes["GET", "/slipstream"] = Reply(
        {"packed": 1, "sampling": {"temperature": 0.7, "repetition_penalty": 1.05}}
    )
    (bad,) = [f for f in check_engine(server.url, settings) if f.level != "ok"]
    assert "temperature 0.7, repetition_penalty 1.05" in bad.what
    assert "generation_config.json" in bad.what
    assert "--generation-config vllm" in bad.fix
    assert '[models."inbox"]' in bad.fix


def test_an_engine_that_does_not_see_the_folder(server: Server, tmp_path: Path) -> None:
    settings = engine(
        server, f"data_dir={tmp_path}", "engine.adapters_dir=/mnt/there", lora=partial(refuse, blind=True)
    )
    (bad,) = [f for f in check_engine(server.url, settings) if f.level != "ok"]
    assert bad.level == "warn"
    assert "does not see the adapters' folder at /mnt/there" in bad.what
    assert "engine.adapters_dir" in bad.fix
    assert server.asked("POST", "/v1/load_lora_adapter")[-1].json["lora_path"].startswith("/mnt/there/.tmp-slipstream-")


def test_an_adapter_that_is_taken_is_given_back(server: Server, tmp_path: Path) -> None:
    server.on("POST", "/v1/unload_lora_adapter", b"")
    found = list(check_engine(server.url, engine(server, f"data_dir={tmp_path}", lora=Reply(b"Success"))))
    assert set(levels(found)) == {"ok"}
    assert len(server.asked("POST", "/v1/unload_lora_adapter")) == 1


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = list(check_engine(server.url, engine(server, f"adapters.dir={tmp_path}/file")))
    (bad,) = [f for f in found if f.level != "ok"]
    assert (bad.level, "can't be written" in bad.what) == ("warn", True)


def test_no_engine() -> None:
    (found,) = check_engine(f"http://127.0.0.1:{free_port()}", config())
    assert (found.level, "does not answer" in found.what) == ("fail", True)


def test_the_engines_key_is_sent(server: Server, tmp_path: Path) -> None:
    settings = engine(server, "engine.api_key=sk-e", f"data_dir={tmp_path}")
    list(check_engine(server.url, settings))
    assert {s.headers["authorization"] for s in server.seen} == {"Bearer sk-e"}


LOGITS = (2.0, 1.5, 0.25, -1.0)
UNLIKELY = 3


def answer(seen: Seen, *, processed: bool) -> Reply:
    """As vLLM does by its ``--logprobs-mode``: of the logits divided by the temperature, or of those that the model gave.

    Its list begins with the sampled token, which is an unlikely one while it is warm.
    """
    heat = seen.json["temperature"] if processed else 1.0
    scale = math.log(sum(math.exp(x / heat) for x in LOGITS))
    order = dict.fromkeys([UNLIKELY if seen.json["temperature"] == 1.0 else 0, *range(len(LOGITS))])
    shown = list(order)[: seen.json.get("top_logprobs", 0)]
    top = [{"token": str(i), "logprob": LOGITS[i] / heat - scale} for i in shown]
    content = [{"token": "0", "logprob": -0.1, "top_logprobs": top}]
    return Reply({"choices": [{**CHOICE, "logprobs": {"content": content}}]})


def test_log_probabilities_before_temperature(server: Server, tmp_path: Path) -> None:
    settings = engine(server, f"data_dir={tmp_path}", chat=partial(answer, processed=False))
    (bad,) = [f for f in check_engine(server.url, settings) if f.level != "ok"]
    assert (bad.level, "before temperature" in bad.what) == ("fail", True)
    assert bad.fix == "start it with --logprobs-mode processed_logprobs"
    settings = engine(server, f"data_dir={tmp_path}", chat=partial(answer, processed=True))
    assert set(levels(list(check_engine(server.url, settings)))) == {"ok"}


@pytest.mark.parametrize(
    ("server", "title"),
    [
        (Ollama(), "Ollama 0.9.6"),
        (LlamaCpp(), "llama.cpp"),
        (LMStudio(), "LM Studio"),
        (Hosted(), "OpenAI-compatible server"),
    ],
)
def test_what_an_engine_without_ids_can_do(tmp_path: Path, server: TextEngine, title: str) -> None:
    with Served(server.app()) as url:
        settings = config(f'engine.urls=["{url}/v1"]', f"data_dir={tmp_path}")
        says, relays, trains = check_engine(settings.engine.urls[0], settings)
        assert (
            says.what == f"engine {url} serves inbox ({title})"
            and "recorded as text, judged and exported" in relays.what
        )
        assert levels([says, relays, trains]) == ["ok", "ok", "warn"] and "vLLM" in trains.fix
        assert trains.what == "the engine gives no token ids"
        assert len(server.bodies) <= 2  # one token at most is asked for to find out what it is
        why = untrainable(settings)
        assert why is not None and title in why
        assert not any(f.level == "warn" for f in check_engine(url, config("trainer.enabled=false")))
        said = [f.what for f in examine(settings, "http://127.0.0.1:9", None)]
        assert not [what for what in said if re.search("trainer|torch|GPU", what)], "nothing there is trained"
        server.model = "another"
        assert [f.level for f in check_engine(url, settings)] == ["ok", "fail"]
        unnamed = Config(engine={"urls": [url]})
        assert levels(list(check_engine(url, unnamed))) == ["ok", "ok", "warn"], "`up` takes the one that is there"
    assert untrainable(settings) is None  # one that is down may come, and says then what it is


def test_a_server_behind_a_gateway_is_known_by_its_ids(server: Server, tmp_path: Path) -> None:
    settings = engine(server, f"data_dir={tmp_path}", version=Reply({}, 404))
    assert untrainable(settings) is None
    assert set(levels(list(check_engine(server.url, settings)))) == {"ok"}
    busy = engine(server, version=Reply({}, 404), chat=Reply(b"busy", 429))
    (found,) = check_engine(server.url, busy)
    assert found.level == "fail" and "429" in found.what  # a busy engine is not taken for one without ids
    forced = engine(server, "engine.kind=openai", chat=Reply(b"busy", 429))
    assert "a chat completion failed" in list(check_engine(server.url, forced))[1].what


def test_a_router_in_the_engine_s_place_is_named(server: Server, tmp_path: Path) -> None:
    settings = engine(server, f"data_dir={tmp_path}")
    server.routes["GET", "/list_workers"] = Reply({"urls": ["http://a:1/", "http://b:2"]})
    (bad,) = [f for f in check_engine(server.url, settings) if ": it is a router or a Service" in f.what]
    assert bad.level == "fail" and bad.what.startswith(f"{server.url} lists 2 engines")
    assert bad.fix == f'set engine.urls = ["http://a:1", "http://b:2"] and engine.router = "{server.url}"'


def test_a_router_that_changes_requests_or_is_away(server: Server, tmp_path: Path) -> None:
    told = CHOICE | {"finish_reason": "stop"}
    answer = {"choices": [told], "prompt_token_ids": [1, 2, 3]}
    settings = engine(server, f"data_dir={tmp_path}", chat=Reply(answer))
    away = settings.model_copy(update={"engine": settings.engine.model_copy(update={"router": "http://127.0.0.1:1"})})
    (gone,) = check_router(away, [server.url])
    assert gone.level == "fail" and "engine.router" in gone.what and "does not answer" in gone.what
    with serve() as through:
        through.on("POST", "/v1/chat/completions", {"choices": [told]})
        routed = settings.model_copy(update={"engine": settings.engine.model_copy(update={"router": through.url})})
        (bad,) = check_router(routed, [server.url])
        assert bad.level == "warn" and "drops return_token_ids" in bad.what
        through.on("POST", "/v1/chat/completions", answer)
        assert [f.level for f in check_router(routed, [server.url])] == ["ok"]
