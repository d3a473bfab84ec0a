"""The configuration: where values come from, what is refused and how that reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tomli_w

from slipstream.config import Config, load_config
from slipstream.errors import ConfigError
from slipstream.settings import ModelRoute


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "slipstream.toml"
    file.write_text(text)
    return file


def test_flag_beats_environment_beats_file_beats_base_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path, "[proxy]\nport = 3\nhost = '3.3.3.3'\ndrain_timeout = 3\n")
    base = {"proxy": {"port": 2, "host": "2.2.2.2", "drain_timeout": 2, "workers": 2}, "groups": {"size": 2}}
    env = {"SLIPSTREAM_PROXY__PORT": "4", "SLIPSTREAM_PROXY__HOST": "4.4.4.4"}
    config = load_config(file, env=env, flags=["proxy.port=5"], base=base)
    assert (config.proxy.port, config.proxy.host) == (5, "4.4.4.4")
    assert (config.proxy.drain_timeout, config.proxy.workers) == (3, 2)
    assert (config.groups.size, config.gate.alpha) == (2, Config().gate.alpha)


def test_the_base_is_not_changed() -> None:
    base = {"reward": {"weights": {"a": 1.0}}}
    load_config(env={}, flags=["reward.weights.b=2"], base=base)
    assert base == {"reward": {"weights": {"a": 1.0}}}


def test_other_variables_of_ours_are_no_settings() -> None:
    env = {"SLIPSTREAM_URL": "http://x", "SLIPSTREAM_LOG_LEVEL": "debug", "HOME__X": "1", "PROXY__PORT": "1"}
    assert load_config(env=env) == Config()


@pytest.mark.parametrize(
    ("flag", "path", "value"),
    [
        ("trainer.learning_rate=1e-3", "trainer.learning_rate", 1e-3),
        ("trainer.enabled=false", "trainer.enabled", False),
        ('engine.args=["--a", "b"]', "engine.args", ["--a", "b"]),
        ("engine.name=inbox", "engine.name", "inbox"),
        ("engine.api_key=0123", "engine.api_key", "0123"),
        ("engine.name=2026-01-01", "engine.name", "2026-01-01"),
        ('engine.name="true"', "engine.name", "true"),
        ("engine.model=C=D", "engine.model", "C=D"),
        ("reward.weights={ judge = 0.5 }", "reward.weights", {"judge": 0.5}),
        ("trainer.lora_targets=all-linear", "trainer.lora_targets", "all-linear"),
        ('trainer.lora_targets=["q_proj"]', "trainer.lora_targets", ["q_proj"]),
        ("data_dir=/d", "data_dir", "/d"),
    ],
)
def test_a_flags_value_is_toml_or_the_text_itself(flag: str, path: str, value: object) -> None:
    found: object = load_config(env={}, flags=[flag])
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_a_flag_names_a_model_with_dots_in_quotes() -> None:
    config = load_config(env={}, flags=['models."gpt-4.1*".trained=inbox', "models.o3.base=inbox"])
    assert config.models == {"gpt-4.1*": ModelRoute(trained="inbox"), "o3": ModelRoute(base="inbox")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[proxy]\nprot = 1", "unknown setting proxy.prot; did you mean proxy.port?"),
        ("[proxxy]\nport = 1", "unknown setting proxxy; did you mean proxy?"),
        ("port = 1", "unknown setting port; did you mean proxy.port or engine.port?"),
        ("[models.x]\ntraind = 'a'\nbase='b'", "unknown setting models.x.traind; did you mean models.x.trained?"),
        ("[gate]\nzzz = 1", "unknown setting gate.zzz"),
        ("[proxy]\nport = 70000", "proxy.port: Input should be less than or equal to 65535 (got 70000)"),
        ("[proxy]\nport = 'x'", "proxy.port: Input should be a valid integer"),
        ("[trainer]\nloss = 'ppo'", "trainer.loss: Input should be 'cispo', 'grpo'"),
        (
            "[trainer]\nadvantage = 'mine:'",
            "trainer.advantage: Input should be 'std', 'mean', 'leave_one_out', or module:",
        ),
        ("[trainer]\nlora_rank = 64", "trainer.lora_rank 64 is above engine.max_lora_rank 16: vLLM would refuse"),
        ("[trainer]\nmin_groups = 64", "trainer.min_groups is above trainer.max_groups"),
        ("[trainer]\nlora_targets = 3", "trainer.lora_targets: "),
        ("[models.x]\ntrained='a'\nbase='b'", "models.x: name exactly one of trained, base, upstream"),
        ("[models.x]\nbase='b'\nexplore='siblings'", "models.x: explore is for a trained model"),
        ("[reward]\ndiscount=0.9", 'reward: discount is for rewards of calls: set credit = "call"'),
        ("[reward.weights]\nreward = nan", "reward.weights.reward: Input should be a finite number (got nan)"),
        ("proxy = 3", "proxy: "),
    ],
)
def test_what_is_wrong_is_one_line_with_file_and_name(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as e:
        load_config(file, env={})
    assert str(e.value).startswith(f"{file}: {message}")
    if message.endswith(("?", "zzz", "refuse")):
        assert str(e.value) == f"{file}: {message}"
    assert "\n" not in str(e.value)


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, "[proxy]\nprot = 1\nworkers = 0\n")
    with pytest.raises(ConfigError) as e:
        load_config(file, env={}, flags=["gate.alfa=0.1"])
    lines = str(e.value).splitlines()
    assert len(lines) == 3
    assert f"{file}: proxy.workers: " in str(e.value)
    assert "--set gate.alfa: unknown setting gate.alfa; did you mean gate.alpha?" in lines


def test_the_place_where_it_was_said_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^environment SLIPSTREAM_PROXY__PROT: unknown .* did you mean proxy\.port\?$"
    ):
        load_config(env={"SLIPSTREAM_PROXY__PROT": "1"})
    with pytest.raises(ConfigError, match=r"^--set proxy\.port: proxy\.port: .*got 'x'"):
        load_config(env={}, flags=["proxy.port=x"])
    with pytest.raises(ConfigError, match=r"write section\.name=value"):
        load_config(env={}, flags=["proxy.port"])
    with pytest.raises(ConfigError, match="data_dir is a value, not a section"):
        load_config(env={}, flags=["data_dir=x", "data_dir.y=1"])


def test_a_wrong_secret_is_not_shown() -> None:
    with pytest.raises(ConfigError) as e:
        load_config(env={}, base={"engine": {"api_key": ["sk-secret"]}})
    assert "engine.api_key" in str(e.value)
    assert "sk-secret" not in str(e.value)


def test_files_that_are_not_there_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load_config(tmp_path / "none.toml", env={})
    with pytest.raises(ConfigError, match="not TOML"):
        load_config(write(tmp_path, "[proxy\n"), env={})
    (tmp_path / "slipstream.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not TOML"):
        load_config(tmp_path / "slipstream.toml", env={})


def test_it_travels_as_json_and_as_toml(tmp_path: Path) -> None:
    config = load_config(env={}, flags=['models."a b*".trained=inbox', "reward.weights={ judge = 1 }", "proxy.port=0"])
    assert load_config(env={}, base=json.loads(config.model_dump_json())) == config
    tree = config.model_dump(exclude_none=True)
    tree["data_dir"] = str(tmp_path)  # a relative one would be beside the file
    wanted = config.model_copy(update={"data_dir": str(tmp_path)})
    assert load_config(write(tmp_path, tomli_w.dumps(tree)), env={}) == wanted


@pytest.mark.parametrize(
    ("flags", "weights"),
    [
        ([], {"reward": 1.0}),
        (["judge.model=openai/x"], {"judge": 1.0}),
        (["judge.function=a:b"], {"judge": 1.0}),
        (["judge.model=openai/x", "judge.function=a:b"], {"judge": 1.0}),
        (["judge.model=openai/x", "judge.name=quality"], {"quality": 1.0}),
        (["judge.model=openai/x", "reward.credit=call"], {"judge": 1.0}),
        (["judge.model=openai/x", "reward.weights.reward=1"], {"reward": 1.0}),
        (["judge.model=openai/x", "reward.weights={ reward = 1, judge = 0.5 }"], {"reward": 1.0, "judge": 0.5}),
    ],
)
def test_a_judges_score_trains_where_no_weights_are_set(flags: list[str], weights: dict[str, float]) -> None:
    assert load_config(env={}, flags=flags).reward.weights == weights


def test_folders_in_a_file_are_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.toml").write_text('[adapters]\ndir = "lora"\n')
    for file in (Path("run/a.toml"), tmp_path / "run" / "a.toml"):
        config = load_config(file, env={})
        assert config.root == tmp_path / "run" / "slipstream-data"
        assert config.adapters_dir == tmp_path / "run" / "lora"
    (tmp_path / "run" / "b.toml").write_text('data_dir = "d"\n[store]\narchive = "/old"\n')
    config = load_config("run/b.toml", env={})
    assert (config.root, config.store.archive) == (tmp_path / "run" / "d", "/old")
    (tmp_path / "c.toml").write_text("data_dir = '~/x'\n")
    assert load_config("c.toml", env={}).data_dir == "~/x"
    # what is said on the spot is where one stands
    assert load_config("run/b.toml", env={"SLIPSTREAM_DATA_DIR": "e"}).root == tmp_path / "e"
    assert load_config("run/b.toml", env={}, flags=["data_dir=f"]).root == tmp_path / "f"
    assert load_config("run/a.toml", env={}, base={"data_dir": "g"}).root == tmp_path / "g"


def test_both_sides_of_a_folder_find_the_same_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "slipstream.toml").write_text("")
    found = []
    for folder, name in ((tmp_path / "run", "slipstream.toml"), (tmp_path, "run/slipstream.toml")):
        monkeypatch.chdir(folder)
        found.append(load_config(name, env={}).keys_file)
    assert found[0] == found[1] == tmp_path / "run" / "slipstream-data" / "keys.json"


def test_an_editors_mark_before_the_text_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "slipstream.toml"
    file.write_bytes("\ufeff[proxy]\nport = 3\n".encode())
    assert load_config(file, env={}).proxy.port == 3
