"""The door for plug-ins: entry points, commands, settings; and what a broken one cannot do."""

from __future__ import annotations

import pytest
from tests.support.plugins import install, uninstall_all

from slipstream import cli, plugins
from slipstream.config import load_config
from slipstream.errors import ConfigError

INIT = """
    from slipstream.plugins import Command, Plugin
    PLUGIN = Plugin(name="hello", text="says hello", settings="plug_hello.settings:Hello",
                    commands={"hello": Command("look", "say hello", "plug_hello.command"),
                              "status": Command("look", "another one", "plug_hello.command")})
"""
SETTINGS = """
    from slipstream.settings.base import Section
    class Hello(Section):
        name: str = "you"
        times: int = 1
"""
COMMAND = """
    def add(parser):
        parser.add_argument("--name", default="you")
    def run(args):
        print("hello", args.name)
        return 0
"""


@pytest.fixture(autouse=True)
def fresh():
    yield
    plugins.installed.cache_clear()


@pytest.fixture
def hello(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "hello", {"__init__": INIT, "settings": SETTINGS, "command": COMMAND})


def test_its_command_is_one_of_ours(hello, capsys):
    assert cli.main(["hello", "--name", "me"]) == 0
    assert capsys.readouterr().out == "hello me\n"
    assert "say hello" in cli.build_parser().format_help()


def test_it_takes_no_command_of_the_core(hello):
    assert cli.module_of("status").startswith("slipstream.cli.")


def test_its_settings_stand_in_its_section(hello):
    config = load_config(flags=["plugins.hello.times=3"])
    settings = plugins.settings_of(config.plugins, plugins.installed().found["hello"])
    assert settings is not None and settings.model_dump() == {"name": "you", "times": 3}
    again = type(config).model_validate_json(config.model_dump_json())
    assert again.plugins == config.plugins


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("plugins.hello.tims=3", "plugins.hello.tims: unknown setting; known are name, times"),
        ("plugins.hello.times=x", "plugins.hello.times: Input should be a valid integer"),
        ("plugins.helo.times=3", "plugins.helo: no plug-in of this name is installed; did you mean hello?"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(hello, flag, text):
    with pytest.raises(ConfigError, match=text.replace("?", r"\?")):
        load_config(flags=[flag])


def test_one_that_is_turned_off_is_not_asked_for(monkeypatch):
    uninstall_all(monkeypatch)
    assert load_config(flags=["plugins.gone.enabled=false"]).plugins == {"gone": {"enabled": False}}
    assert plugins.used(load_config().plugins) == []


def test_a_broken_package_ends_nothing(monkeypatch, tmp_path, capsys):
    install(monkeypatch, tmp_path, "broken", {"__init__": "raise OSError('no such thing')"})
    assert plugins.installed().broken == {"broken": "OSError: no such thing"}
    assert cli.main(["config", "--plain"]) == 0
    with pytest.raises(ConfigError, match="plugins.broken: the plug-in can't be imported: OSError: no such thing"):
        load_config(flags=["plugins.broken.x=1"])


def test_a_broken_command_says_which_module_it_is(monkeypatch, tmp_path, capsys):
    modules = {"__init__": INIT, "settings": SETTINGS, "command": "import nothing_of_this_name"}
    install(monkeypatch, tmp_path, "hello", modules)
    assert cli.main(["hello"]) == 2
    assert "the plug-in's module plug_hello.command can't be imported" in capsys.readouterr().err


def test_what_is_no_plugin_is_said(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, "other", {"__init__": "PLUGIN = 3"})
    assert plugins.installed().broken == {
        "other": "ConfigError: plug_other:PLUGIN is a int, and no slipstream.plugins.Plugin"
    }
