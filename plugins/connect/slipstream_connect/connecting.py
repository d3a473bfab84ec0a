"""What ``slipstream connect`` does: an agent's own file written and put back, its lines, its command for one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from slipstream.errors import ConfigError, StartError
from slipstream_connect.agents import CodingAgent

STATE_FILE = Path(".config/slipstream/connect.json")
"""Below the home: what ``connect`` wrote, so that ``--undo`` can take it back."""


class AgentAddress(NamedTuple):
    """Where an agent's calls go. ``episode`` and ``task`` stand in the address, so that no agent has to send them."""

    root: str
    """The proxy's URL, without ``/v1``."""
    model: str
    key: str = "none"
    episode: str | None = None
    task: str | None = None

    def filled(self, text: str, folder: str = "{dir}") -> str:
        tags = (f"/t/{self.task}" if self.task else "") + (f"/e/{self.episode}" if self.episode else "")
        root = self.root + tags
        address = urlsplit(f"{root}/v1")
        host, path = f"{address.scheme}://{address.netloc}", address.path.removeprefix("/")
        return text.format(
            root=root, url=f"{root}/v1", host=host, path=path, model=self.model, key=self.key, dir=folder
        )


def _ask(place: AgentAddress) -> httpx.Response:
    headers = {"authorization": f"Bearer {place.key}"} if place.key != "none" else {}
    return httpx.get(place.filled("{url}/models"), headers=headers, timeout=10.0, trust_env=False)


def _names(reply: httpx.Response) -> list[str]:
    return [str(card["id"]) for card in reply.raise_for_status().json()["data"]]


def served_there(place: AgentAddress) -> AgentAddress:
    """The same with the first name that the proxy serves: nobody here has named the model."""
    try:
        return place._replace(model=_names(_ask(place))[0])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError):
        return place


def trouble_of(place: AgentAddress) -> str | None:
    """Why an agent's call would fail there, and what to do; None: it would be taken.

    The proxy is asked as an agent asks, with the agent's key, for the names that it serves: no token is made.
    """
    try:
        reply = _ask(place)
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        why = str(e) or type(e).__name__
        return f"no proxy answers at {place.root} ({why}): start `slipstream up`, or give its address with --url"
    if reply.status_code in {401, 403}:
        fix = "give one with the scope inference: --key, or SLIPSTREAM_API_KEY (`slipstream keys add NAME`)"
        return (
            f"the proxy at {place.root} refuses the key {'that you gave' if place.key != 'none' else '(none)'}: {fix}"
        )
    if reply.status_code == 503:
        return f"the proxy at {place.root} has no engine that is up: `slipstream status` says why"
    try:
        names = _names(reply)
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return f"{place.root} is no Slipstream proxy (GET {urlsplit(str(reply.url)).path}: {reply.status_code})"
    if place.model not in names:
        fix = "give one of them with --model, unless a pattern of [models] has it"
        return f"the proxy lists no model {place.model}, but {', '.join(names)}: {fix}"
    return None


def lines_of(agent: CodingAgent, place: AgentAddress) -> list[str]:
    """What to paste: the file with its path, or lines for a shell, and what is left to do."""
    lines = []
    if agent.file is not None:
        lines = [f"# ~/{agent.file.path}", *place.filled(agent.file.text).rstrip().split("\n")]
    elif agent.env:
        lines = [f"export {name}={place.filled(value)}" for name, value in agent.env.items()]
    return [*lines, *([f"# {place.filled(agent.then)}"] if agent.then else [])]


def run_of(
    agent: CodingAgent, place: AgentAddress, command: list[str], folder: Path
) -> tuple[list[str], dict[str, str]]:
    """The command for one run, and what its environment has beside ours. Files go into ``folder``."""
    if agent.file is not None and agent.run_file is not None:
        (folder / agent.run_file).parent.mkdir(parents=True, exist_ok=True)
        (folder / agent.run_file).write_text(place.filled(agent.file.text))
    args = [place.filled(arg, str(folder)) for arg in agent.args]
    env = {name: place.filled(value, str(folder)) for name, value in agent.env.items()}
    return [command[0], *args, *command[1:]], env


def _write(path: Path, text: str) -> None:
    """The whole file or nothing of it. It may hold keys: a new one is its owner's alone. A link stays one."""
    path = path.resolve()
    made = path.with_name(f".{path.name}.slipstream")
    made.touch(0o600)
    made.write_text(text)
    made.chmod(path.stat().st_mode if path.exists() else 0o600)
    made.replace(path)


def _state(home: Path) -> dict[str, Any]:
    try:
        read = json.loads((home / STATE_FILE).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise StartError(f"{home / STATE_FILE}: {e}") from e
    return read if isinstance(read, dict) else {}


def _keep(home: Path, state: dict[str, Any]) -> None:
    (home / STATE_FILE).parent.mkdir(parents=True, exist_ok=True)
    _write(home / STATE_FILE, json.dumps(state, indent=2) + "\n")
    (home / STATE_FILE).chmod(0o600)  # it holds what stood in the agents' files


def _merged(before: Any, more: Any) -> Any:
    if isinstance(before, dict) and isinstance(more, dict):
        return {**before, **{name: _merged(before.get(name), value) for name, value in more.items()}}
    return more


def connect(agent: CodingAgent, place: AgentAddress, home: Path) -> Path | None:
    """Write the agent's file. None: it has none, and ``lines_of`` are to be exported. Raises ``ConfigError`` where a
    file is there that cannot be merged.
    """
    if agent.file is None:
        return None
    path, text, state = home / agent.file.path, place.filled(agent.file.text), _state(home)
    before = path.read_text() if path.exists() else None
    if (told := state.get(agent.name)) is not None:
        before = _taken_out(path, before, told["before"], told["after"])
    if before is not None:
        if path.suffix != ".json":
            raise ConfigError(f"{path} is there already: `slipstream connect {agent.name} --print` says what to add")
        try:
            text = json.dumps(_merged(json.loads(before), json.loads(text)), indent=2) + "\n"
        except ValueError as e:
            raise ConfigError(
                f"{path} is no plain JSON ({e}): `slipstream connect {agent.name} --print` says what to add"
            ) from e
    path.parent.mkdir(parents=True, exist_ok=True)
    _keep(home, {**state, agent.name: {"path": str(path), "before": before, "after": text}})
    _write(path, text)
    return path


_GONE = object()
"""An entry that is not there."""


def _without(now: object, after: object, before: object) -> object:
    """``now`` with each entry as it was before, but for those that somebody changed after we wrote them."""
    if not (isinstance(now, dict) and isinstance(after, dict)):
        return before if now == after else now
    was = before if isinstance(before, dict) else {}
    made = {name: _without(value, after.get(name, _GONE), was.get(name, _GONE)) for name, value in now.items()}
    left = {name: value for name, value in made.items() if value is not _GONE}
    return left if left or before is not _GONE else _GONE


def _taken_out(path: Path, now: str | None, before: str | None, after: str) -> str | None:
    """The file's text without what we wrote into it; None: no file is left. An agent writes into its file, too.

    Raises ``ConfigError`` where ours cannot be told from what was written since.
    """
    if now == after or (now is None and before is None):
        return before
    try:
        if now is None:
            raise ValueError
        if path.suffix != ".json":  # such a file is all ours, where it was made
            if before is not None or after not in now:
                raise ValueError
            return now.replace(after, "", 1)
        read = _without(json.loads(now), json.loads(after), _GONE if before is None else json.loads(before))
    except ValueError as e:
        raise ConfigError(
            f"{path} was changed since: take out by hand what `slipstream connect --print` says for it"
        ) from e
    return None if read is _GONE else json.dumps(read, indent=2) + "\n"


def undo(agent: CodingAgent, home: Path) -> Path | None:
    """Take out of the file what was written. None: nothing was. Raises ``ConfigError`` where that is not certain."""
    state = _state(home)
    told = state.pop(agent.name, None)
    if told is None:
        return None
    path = Path(told["path"])
    text = _taken_out(path, path.read_text() if path.exists() else None, told["before"], told["after"])
    if text is None:
        path.unlink(missing_ok=True)
    else:
        _write(path, text)
    _keep(home, state)
    return path
