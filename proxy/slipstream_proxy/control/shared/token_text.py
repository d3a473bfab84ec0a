"""Texts of token ids: by the model's tokenizer where its files are on this machine, else by the engine."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections import OrderedDict
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import aiohttp

from slipstream.config import Config
from slipstream_proxy.answers import whole_answer
from slipstream_proxy.control.shared.threads import in_thread

UNFINISHED_CHARACTER = "\ufffd"
"""What a decoder writes for a part of a character."""
LONGEST_PART = 6
"""Tokens after which a part of a character counts as broken."""
MOST_ASKED = 4096
"""Tokens that the engine is asked for, for one reply."""
AT_ONCE = 16
DETOKENIZE_TIMEOUT_S = 10.0
MAX_CACHED_TOKENS = 200_000
TOKEN_BYTES = 2**14
"""The longest answer about one token."""


class Decoder(Protocol):
    """The part of ``tokenizers.Tokenizer`` that is used."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


class TokenTexts(NamedTuple):
    """The texts of each list of ids. If ``texts`` is None, ``why`` says so. ``source`` names who made them."""

    texts: Sequence[list[str] | None] | None
    source: str | None
    why: str | None = None


def pieces(decoder: Decoder, ids: Sequence[int]) -> list[str]:
    """The text that each token adds. Together they are the decoded text; a character stands at its last token."""
    found: list[str] = []
    begin, done = 0, ""
    for i in range(len(ids)):
        text = decoder.decode(ids[begin : i + 1], skip_special_tokens=False)
        if text.endswith(UNFINISHED_CHARACTER) and i - begin < LONGEST_PART + 1 and i + 1 < len(ids):
            found.append("")
            continue
        found.append(text.removeprefix(done))
        # one token of context stays: decoders treat a text's first one in its own way
        begin, done = i, decoder.decode(ids[i : i + 1], skip_special_tokens=False)
    return found


def tokenizer_file(model: str | None) -> Path | None:
    """``tokenizer.json`` of a model's folder, or of a hub name in this machine's cache."""
    if not model:
        return None
    folder = Path(model).expanduser()
    if (folder / "tokenizer.json").is_file():
        return folder / "tokenizer.json"
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    name = "models--" + model.strip("/").replace("/", "--")
    found = sorted(cache.glob(f"{name}/snapshots/*/tokenizer.json"), key=lambda p: p.stat().st_mtime)
    return found[-1] if found else None


@lru_cache(maxsize=4)
def _decoder(path: Path, changed: float) -> Decoder | None:
    """``changed``: the file's time, so that another file is read again."""
    try:
        decoder: Decoder = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
    except Exception:  # not installed, or a file that it cannot read: the engine is asked
        return None
    return decoder


class TokenTexter:
    """``urls``: the engines that may be asked now."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._told: OrderedDict[tuple[str, int], str] = OrderedDict()

    async def texts(self, model: str, lists: Sequence[Sequence[int]], urls: Sequence[str]) -> TokenTexts:
        """Texts of lists of ids. ``model``: its name at the engine."""
        for name in dict.fromkeys((self.config.engine.model, self.config.trainer.model)):
            path = tokenizer_file(name)
            decoder = _decoder(path, path.stat().st_mtime) if path is not None else None
            if decoder is not None:
                made = await in_thread(lambda d=decoder: [pieces(d, ids) for ids in lists])
                return TokenTexts(made, str(path))
        return await self._asked(model, lists, urls)

    async def _asked(self, model: str, lists: Sequence[Sequence[int]], urls: Sequence[str]) -> TokenTexts:
        unknown = {i for ids in lists for i in ids} - {i for name, i in self._told if name == model}
        if len(unknown) > MOST_ASKED:
            return TokenTexts(None, None, f"the engine would be asked for more than {MOST_ASKED} tokens: ask for fewer")
        if unknown and not urls:
            return TokenTexts(None, None, "no engine answers, and there is no tokenizer of the model on this machine")
        try:
            if unknown:
                await self._ask(urls[0], model, unknown)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError, RecursionError) as e:
            why = f"{urls[0]} does not tell tokens' texts ({type(e).__name__}); set engine.model to the model's folder"
            return TokenTexts(None, None, why)
        return TokenTexts([[self._told[model, i] for i in ids] for ids in lists], urls[0] if urls else None)

    async def _ask(self, url: str, model: str, ids: Collection[int]) -> None:
        headers = self.config.engine.headers(url)
        gate = asyncio.Semaphore(AT_ONCE)
        timeout = aiohttp.ClientTimeout(total=DETOKENIZE_TIMEOUT_S)

        async def one(session: aiohttp.ClientSession, id: int) -> None:
            asked = {"model": model, "tokens": [id]}
            async with gate, session.post(f"{url}/detokenize", json=asked, allow_redirects=False) as reply:
                reply.raise_for_status()
                self._told[model, id] = str(json.loads(await whole_answer(reply, TOKEN_BYTES))["prompt"])

        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            await asyncio.gather(*(one(session, token) for token in ids))
        while len(self._told) > MAX_CACHED_TOKENS:
            self._told.popitem(last=False)
