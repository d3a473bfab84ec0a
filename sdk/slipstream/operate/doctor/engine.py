"""The doctor's look at an engine: what it is, whether it serves the model, and what its kind says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import httpx

from slipstream.config import Config
from slipstream.engines import detect
from slipstream.engines.engine import NO_RIGHT, Engine, EngineAway, ask_now, ask_over, changed_on_the_way
from slipstream.engines.findings import NO_CALLS, Finding, fail, ok, warn

SAME_QUESTIONS = 6
"""Times that one question is asked, each on a connection of its own."""


def _check_alone(url: str, engine: Engine, http: httpx.Client) -> Iterator[Finding]:
    """Whether one engine answers there, and no router or Service with several."""
    behind = ask_now(engine.replicas(), lambda asked: ask_over(http, asked))
    lists = set()
    for _ in range(SAME_QUESTIONS):
        answer = http.get("/v1/models", headers={"connection": "close"}).json()
        lists.add(tuple(sorted(m["id"] for m in answer["data"])))
    if len(behind) > 1 or len(lists) > 1:
        those = ", ".join(f'"{u}"' for u in behind) or "the address of each engine behind it"
        said = f"lists {len(behind)} engines" if len(behind) > 1 else "answers the same question in different ways"
        why = "an adapter reaches one of the engines behind it, and calls reach all: they are answered with 404"
        yield fail(
            f"{url} {said}: it is a router or a Service",
            why,
            f'set engine.urls = [{those}] and engine.router = "{url}"',
        )


def check_router(config: Config, urls: Sequence[str]) -> Iterator[Finding]:
    """What engine.router makes of a request that an engine answers."""
    router = config.engine.router
    if router is None or not urls:
        return
    with (
        httpx.Client(base_url=urls[0], timeout=60.0, trust_env=False, headers=config.engine.headers(urls[0])) as http,
        httpx.Client(base_url=router, timeout=60.0, trust_env=False, headers=config.engine.headers(router)) as through,
    ):
        try:
            engine, _ = ask_now(detect(config.engine.kind, config.model_name), lambda asked: ask_over(http, asked))
            asked = engine.telling_chat(config.model_name)
            if asked is None:
                return
            direct = ask_over(http, asked)
        except EngineAway:
            return  # its own check says so
        try:
            changed = changed_on_the_way(direct, ask_over(through, asked))
        except EngineAway as e:
            yield fail(f"engine.router {router} does not answer: {e}", NO_CALLS, "start it, or correct engine.router")
            return
    if changed is None:
        yield ok(f"engine.router {router} passes requests on as they are")
    else:
        why = "the engine reads another request than the agent sent"
        yield warn(
            f"engine.router {router}: {changed}",
            why,
            "set engine.router to one that passes bodies as they are (Envoy, nginx)",
        )


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
        yield from _check_alone(url, engine, http)
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
