"""Cases as they are kept: in a proxy's store, or in a file of exported episodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from slipstream.client import Client
from slipstream.contract import EpisodeDetail
from slipstream.errors import ConfigError
from slipstream_replay.steps import JsonObject

PART_EPISODES, PART_CHARACTERS = 256, 16 * 2**20
"""Episodes of one import request, at most, and their JSON text, about."""


def stored_cases(client: Client, name: str, version: int | None = None) -> Iterator[EpisodeDetail]:
    """The episodes of a set in the order of their ids, their calls in deltas. Raises ``ApiError``."""
    after = ""
    while True:
        page = client.case_page(name, version=version, after=after, whole=True)
        version = page.version  # what changes meanwhile is another version
        yield from (case.detail for case in page.cases if case.detail)
        if page.next is None:
            return
        after = page.next


def file_cases(path: Path) -> Iterator[EpisodeDetail]:
    """The episodes of a file: a line of JSON each, as ``slipstream cases export`` writes it. Raises ``ConfigError``."""
    try:
        with path.open(encoding="utf-8") as lines:
            for n, line in enumerate(lines, 1):
                if line.strip():
                    yield _episode(path, n, line)
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: {getattr(e, 'strerror', None) or e}") from e


def _episode(path: Path, number: int, line: str) -> EpisodeDetail:
    try:
        return EpisodeDetail.model_validate(json.loads(line))
    except ValidationError as e:
        first = e.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        raise ConfigError(
            f"{path}, line {number}: {where}: {first['msg']}; write it with slipstream cases export"
        ) from e
    except ValueError as e:
        raise ConfigError(f"{path}, line {number}: not JSON: {e}") from e


def json_line(episode: EpisodeDetail) -> str:
    """In ASCII: a transcript may hold half a surrogate pair, which UTF-8 has no bytes for."""
    return json.dumps(episode.model_dump(mode="json"), ensure_ascii=True)


def parts(episodes: Iterable[EpisodeDetail]) -> Iterator[list[JsonObject]]:
    """In parts of the size of one import request. An episode that comes twice is taken once, as it came first."""
    part: list[JsonObject] = []
    weight = 0
    seen: set[tuple[str, str]] = set()
    for episode in episodes:
        if (episode.key, episode.id) in seen:
            continue
        seen.add((episode.key, episode.id))
        size = len(json_line(episode))
        if part and (len(part) == PART_EPISODES or weight + size > PART_CHARACTERS):
            yield part
            part, weight = [], 0
        part.append(episode.model_dump(mode="json"))
        weight += size
    if part:
        yield part
