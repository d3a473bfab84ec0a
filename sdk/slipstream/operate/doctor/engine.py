"""The doctor's look at an engine: what it is, whether it serves the model, and what its kind says of it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from slipstream.config import Config
from slipstream.engines import detect
from slipstream.engines.engine import NO_RIGHT, EngineAway, ask_now, ask_over
from slipstream.engines.findings import NO_CALLS, Finding, fail, ok


def check_engine(url: str, config: Config) -> Iterator[Finding]:
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False, headers=config.engine.headers(url)) as http:
        try:
            models = http.get("/v1/models").raise_for_status().json()["data"]
            engine, title = ask_now(detect(config.engine.kind, config.model_name), lambda asked: ask_over(http, asked))
        except (httpx.HTTPError, EngineAway, ValueError, KeyError) as e:
            if isinstance(e, httpx.HTTPStatusError) and e.response.status_code in NO_RIGHT:
                yield fail(f"engine {url} refuses the key", NO_CALLS, "set engine.api_key to the engine's own")
            else:
                what = f"engine {url} does not answer: {e if isinstance(e, EngineAway) else type(e).__name__}"
                fix = "start it (`slipstream up`, or your own server), or correct engine.urls"
                yield fail(what, NO_CALLS, fix)
            return
        names = [m["id"] for m in models]
        yield ok(f"engine {url} serves {', '.join(names)} ({title})")
        bases = [m["id"] for m in models if not m.get("parent")]
        if len(bases) == 1 and not (config.engine.name or config.engine.model):  # `slipstream up` takes that one
            config = config.model_copy(update={"engine": config.engine.model_copy(update={"name": bases[0]})})
        if config.model_name not in names:
            yield fail(
                f"the engine serves no model {config.model_name}",
                NO_CALLS,
                f"set engine.name to one of: {', '.join(names)}",
            )
            return
        root = next((m.get("root") for m in models if m["id"] == config.model_name), None)
        yield from engine.examine(http, config, root)
