"""The page in a real browser: what it says is true, where that is easily got wrong."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import AsyncIterator

import pytest
from tests.support.adapters import write_adapter
from tests.support.browser import CHROMIUM
from tests.support.page_data import PLANE, SYSTEM, Runs, make_demo, says, step_event, tool, user, uses
from tests.support.page_views import click, fill, opened
from tests.support.plane import until

from slipstream.shared.processes.sidecars import SidecarFile
from slipstream.shared.processes.supervisor import Child
from slipstream_proxy.control.observe import activity
from slipstream_proxy.control.status import status
from slipstream_proxy.control.storage import feed

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")
DETAIL = "(document.querySelector('section[aria-label=\"Adapter tiny@2\"]')?.innerText ?? '')"
OPEN = "document.querySelector('[aria-label^=\"Episode\"], [aria-label=Transcript]').innerText"
"""What stands unfolded."""


async def make_edited(runs: Runs) -> None:
    """A coding agent that clears an old tool result and rewrites its task."""
    first, second = uses("search", 1, q="logs"), uses("move", 2, to="Work")
    result = tool(first, "LONG OLD RESULT")
    start = [SYSTEM, user("Sort the mail, FIRST WORDING.")]
    await runs.call("edited", start, first)
    await runs.call("edited", [*start, first, result], second)
    cleared = [SYSTEM, user("Sort the mail, SECOND WORDING."), first, tool(first, "[cleared]")]
    await runs.call("edited", [*cleared, second, tool(second, "moved")], says("All done."), done=True)
    await runs.plane.seen("edited")


@pytest.mark.parametrize("where", ["episode/edited", "label/edited?key=-"])
async def test_text_that_the_call_never_sent_is_folded_and_says_so(make_plane, tmp_path, where):
    plane = await make_plane()
    await make_edited(Runs(plane))
    async with opened(plane, tmp_path, f"#/{where}") as (page, _):
        await page.holds("All done.")
        shown = await page.js(OPEN)
        assert "SECOND WORDING" in shown and "[cleared]" in shown and "changed 2 earlier messages" in shown
        assert "FIRST WORDING" not in shown and "LONG OLD RESULT" not in shown
        await page.js("document.querySelectorAll('details.gone').forEach(d => { d.open = true })")
        await page.holds("LONG OLD RESULT")
        assert await page.accessibility() == []
        assert page.errors == []


@contextlib.asynccontextmanager
async def freezable(port: int) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """→ (an address of what listens at ``port``, set while bytes flow). Cleared, connections stay open and silent."""
    flows = asyncio.Event()
    flows.set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                await flows.wait()
                writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, ours), pump(theirs, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flows
    finally:
        flows.set()
        server.close()


SOONER = "const real = setTimeout; window.setTimeout = (f, ms, ...a) => real(f, ms > 20000 ? ms / 10 : ms, ...a)"
PULSE = "document.querySelector('.pulse')?.innerText ?? ''"


async def test_a_proxy_that_is_frozen_is_not_live(make_plane, tmp_path, monkeypatch):
    monkeypatch.setattr(feed.Feed.lines, "__kwdefaults__", {"heartbeat": 1.0})
    plane = await make_plane()
    await plane.call("e1")
    await plane.seen("e1")
    async with freezable(plane.client.port) as (home, flows), opened(plane, tmp_path) as (page, _):
        await page.ask("Page.addScriptToEvaluateOnNewDocument", source=SOONER)
        await page.go(home)
        await page.until(f"({PULSE}).includes('live')")
        flows.clear()
        await page.until(f"({PULSE}).includes('no answer')")
        await page.holds("The proxy does not answer.")
        flows.set()
        await page.until(f"({PULSE}).includes('live')")


@pytest.mark.parametrize("name", ["trainer", "judge"])
async def test_a_process_that_hangs_is_not_running(make_plane, tmp_path, monkeypatch, name):
    plane = await make_plane()
    await plane.call("e1")
    await plane.seen("e1")
    SidecarFile(plane.config.root)([Child(name, [sys.executable], essential=False)])
    async with opened(plane, tmp_path) as (page, _):
        await page.until(f"document.querySelector('.cards')?.innerText.includes('{name}')")
        assert (await plane.ask("GET", "/status"))[1]["sidecars"][0]["state"] == "running"
        monkeypatch.setattr(activity, "SIDECAR_TIMEOUT_S", 0.0)
        await plane.call("e2")
        await page.holds("it has not asked for work for")
        assert await page.js(
            "[...document.querySelectorAll('.card.bad')].map(c => c.innerText).join().includes('silent')"
        )


async def test_a_trainer_that_stands_still_with_a_batch_is_not_running(make_plane, monkeypatch):
    monkeypatch.setattr(status, "HANGING_TRAINER_S", 0.3)
    plane = await make_plane(groups={"size": 2})
    for n in range(2):
        await plane.call(f"e{n}", done=True)
        await plane.seen(f"e{n}")
        await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": float(n)})
    lease = {"worker": "w", "min_groups": 1, "max_wait": 0}

    async def leased():
        asked = await plane.client.post("/slipstream/v1/batches/lease", json=lease, headers=plane.as_())
        return asked.status == 200

    await until(leased)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
    SidecarFile(plane.config.root)([Child("trainer", [sys.executable], essential=False, process=process)])

    async def told(state):
        (trainer,) = (await plane.ask("GET", "/status"))[1]["sidecars"]
        return trainer["state"] == state and (state == "running" or "has computed nothing" in trainer["reason"])

    try:
        for _ in range(4):
            assert await told("running")
            await asyncio.sleep(0.2)
        process.send_signal(signal.SIGSTOP)
        await until(lambda: told("silent"))
        lines = (await plane.ask("GET", "/status"))[1]["waiting"]
        assert any("the trainer hangs" in line for line in lines) and "1 group is with the trainer" in lines
        process.send_signal(signal.SIGCONT)
        await until(lambda: told("running"))
    finally:
        process.kill()
        await process.wait()


async def test_no_version_that_was_decided_on_needs_more_episodes(make_plane, tmp_path):
    plane = await make_plane(**{**PLANE, "gate": {"holdout": 0.3}})
    runs = Runs(plane)
    for n in (1, 2):
        write_adapter(plane.config.adapters_dir / f"tiny@{n}", fill=n)
        assert (await plane.ask("POST", "/adapters?wait=60", {"path": f"tiny@{n}", "step": n}))[0] in (200, 201)
        for m in range(12):
            arm = {"adapter": "tiny", "arm": "control"} if m % 3 == 2 else {"adapter": f"tiny@{n}"}
            await runs.talk(f"r{n}-{m}", 0, chances="live=0.7 control=0.3", done=True, **arm)
            await runs.reward(f"r{n}-{m}", (m % 5) / 5)
        (tried,) = [v for v in (await plane.ask("GET", "/adapters"))[1]["adapters"] if v["version"] == n]
        assert tried["state"] == "candidate" and tried["gate"]["decision"] == "undecided"
        assert (await plane.ask("POST", f"/adapters/tiny@{n}/promote", {"reason": "by hand"}))[0] == 200
    versions = (await plane.ask("GET", "/adapters"))[1]["adapters"]
    assert {v["state"] for v in versions} == {"live", "retired"}
    assert all(v["gate"] is None or v["gate"]["episodes_left"] is None for v in versions)
    async with opened(plane, tmp_path) as (page, home):
        for n in (1, 2):
            await page.go(f"{home}#/adapters?adapter=tiny%40{n}")
            await page.holds("its episodes")
            await page.settled()
            assert "more new episode" not in await page.js("document.body.innerText")


async def test_rewards_of_imported_runs_are_rewards(make_plane, tmp_path):
    plane = await make_plane()
    said = [{"role": "user", "content": "Oslo, please"}, {"role": "assistant", "content": "Booked."}]
    for n in range(3):
        body = {"id": f"old{n}", "model": "gpt-4o", "messages": said, "at": plane.deps.now() - 60, "reward": n / 2}
        assert (await plane.ask("POST", "/import", body))[0] == 200
        await plane.seen(f"old{n}")
    async with opened(plane, tmp_path) as (page, _):
        await page.until("!!document.querySelector('figure.chart, .uplot')")
        assert "No rewards yet" not in await page.js("document.body.innerText")
        assert page.errors == []


@pytest.mark.slow
async def test_one_adapter_has_the_same_figures_on_each_view(make_plane, tmp_path):
    """Each says whether it is of live, control or held-out runs, and what it may truly be."""
    plane = await make_plane(**PLANE)
    await make_demo(plane)
    points = (await plane.ask("GET", "/learning?by=adapter&each=role"))[1]["points"]
    query = "SELECT count(*), avg(reward) FROM episodes WHERE adapter = 'tiny@2' AND reward IS NOT NULL AND "
    where = {
        "held-out": "split = 'eval'",
        "live": "split <> 'eval' AND arm = 'live'",
        "control": "split <> 'eval' AND arm = 'control'",
    }
    async with opened(plane, tmp_path, "#/adapters?adapter=tiny%402") as (page, _):
        await page.until(f"{DETAIL}.includes('mean reward, held-out')")
        shown = await page.js(DETAIL)
        for role, test in where.items():
            ((n, mean),) = (await plane.ask("POST", "/sql", {"query": query + test}))[1]["rows"]
            (point,) = [p for p in points if (p["adapter"], p["series"]) == ("tiny@2", role)]
            assert point["n"] == n and point["mean"] == pytest.approx(mean) and point["low"] < mean < point["high"]
            told = re.search(rf"{role}\n([\d.]+) \({point['low']:.2f} to {point['high']:.2f}\) of {n}\n", shown)
            assert told and float(told[1]) == pytest.approx(mean, abs=0.00051), shown
        assert await page.accessibility() == []


async def make_tasks(runs: Runs) -> None:
    """Two tasks, of which one fails with the version: its runs, before and after."""
    for n in range(8):
        for task, base, now in (("easy", 0.0, 1.0), ("hard", 1.0, 0.0)):
            for adapter, value in (("tiny", base), ("tiny@1", now)):
                name = f"{task}-{adapter[4:] or 'base'}-{n}".replace("@", "v")
                await runs.talk(
                    name,
                    n % 2,
                    task=task,
                    adapter=adapter,
                    done=True,
                    evil="**Done**: [x](javascript:alert(1)) https://a.b/c",
                )
                await runs.reward(name, value if n else 0.5)


@pytest.mark.slow
async def test_the_task_that_fails_most_and_its_worst_run(make_plane, tmp_path):
    plane = await make_plane(groups={"size": 99})
    await make_tasks(Runs(plane))
    async with opened(plane, tmp_path, "#/tasks") as (page, home):
        await page.until("document.querySelectorAll('tbody tr').length === 2")
        first = await page.js("document.querySelector('tbody tr').innerText")
        assert first.startswith("hard") and "−0.88" in first and "of 8" in first and "hard-v1-" in first
        assert await page.accessibility() == []
        await page.js("[...document.querySelectorAll('th button')].find(b => b.innerText.startsWith('base')).click()")
        await page.until("document.querySelector('tbody tr').innerText.startsWith('easy')")
        assert "sort=base" in await page.js("location.hash")
        await page.js("document.querySelector('tbody tr td:last-child a').click()")
        await page.until("location.hash.startsWith('#/episode/easy-v1-')")
        await page.until("document.querySelector('.markdown strong')?.innerText === 'Done'")
        links = "[...document.querySelectorAll('.markdown a')].map(a => a.href + ' ' + a.rel)"
        assert set(await page.js(links)) == {"https://a.b/c noopener noreferrer nofollow"}
        assert await page.accessibility() == []
        await page.js("document.querySelector('.role button').click()")
        await page.until("document.querySelector('.assistant pre')?.innerText.includes('**Done**')")
        await page.go(home + "#/compare?left=-%2Fhard-base-1&right=-%2Fhard-v1-2")
        await page.holds("tokens sampled")
        await page.until("document.querySelectorAll('.diff tr.less, .diff tr.more').length > 0")
        assert await page.accessibility() == []
        assert page.errors == []


async def test_back_comes_to_the_same_place_and_new_rows_do_not_move_it(make_plane, tmp_path):
    plane = await make_plane()
    for n in range(230):
        await plane.call(f"e{n:03}", task=f"t{n % 2}", done=True)
    await plane.seen("e229")
    row = "document.querySelector('tr.chosen')"
    top = f"{row}?.getBoundingClientRect().top"
    async with opened(plane, tmp_path, "#/episodes?task=t1&at=-%2Fe005") as (page, _):
        await page.until(f"{row}?.dataset.id === '-/e005'")
        await page.settled()
        place = await page.js(top)
        await plane.call("newest", task="t1", done=True)
        await page.holds("Show 1 newer episode")
        assert await page.js(top) == place
        await page.press("Enter")
        await page.until("location.hash.startsWith('#/episode/e005')")
        await page.js("history.back()")
        await page.until(f"location.hash.includes('task=t1') && {row}?.dataset.id === '-/e005'")
        assert page.errors == []


async def test_runs_are_labelled_with_the_keyboard_alone(make_plane, tmp_path):
    plane = await make_plane()
    for n in range(3):
        await plane.call(f"e{n}", done=True)
        await plane.seen(f"e{n}")
    async with opened(plane, tmp_path, "#/label") as (page, home):
        # where a click has left the focus: on the transcript, nowhere, on the queue's line of this run
        clicked = ("#main", "body", "nav[aria-label=Queue] a[aria-current=true]")
        for value, note, at in zip(("1", "0", "1"), ("", "x", ""), clicked, strict=True):
            await page.until("!!document.querySelector('form[aria-label=\"Your label\"]')")
            before = await page.js("location.hash")
            await page.js(f"document.querySelector({at!r}).focus()")
            await page.press(value)
            await page.until("!!document.querySelector('form button[aria-pressed=true]')")
            if note:
                await page.press("c")
                await page.until("document.activeElement.name === 'note'")
                await page.press(note)
                await page.press("Escape")
            await page.press("Enter")
            await page.until(f"location.hash !== {before!r}")
        await page.holds("There is nothing to label.")
        # somebody else sees the queue of what others labelled from its beginning, and the keys work on its box
        await plane.call("e3", done=True)
        await plane.seen("e3")
        await page.ask("Network.setExtraHTTPHeaders", headers=plane.as_("ben"))
        await page.go(home + "#/label")
        await page.until("location.hash.startsWith('#/label/e3?')")
        await page.js("(document.querySelector('[name=second]').focus(), document.activeElement.click())")
        await page.until("/#.label.e[012]/.test(location.hash)")
        await page.press("0")
        await page.until("!!document.querySelector('form button[aria-pressed=true]')")

    async def labelled():
        found = [(await plane.ask("GET", f"/episodes/e{n}"))[1]["rewards"] for n in range(3)]
        return found if all(found) else None

    given = [(r["value"], r["reason"], r["source"]) for rewards in await until(labelled) for r in rewards]
    assert sorted(given, key=str) == [(0.0, "x", "human"), (1.0, None, "human"), (1.0, None, "human")]


async def test_a_run_is_assigned_and_commented(make_plane, tmp_path):
    plane = await make_plane()
    for n in range(3):
        await plane.call(f"e{n}", done=True)
        await plane.seen(f"e{n}")
    queue = "[...document.querySelectorAll('nav[aria-label=Queue] li a')].map(a => a.innerText).join()"
    async with opened(plane, tmp_path, "#/label/e1?key=-") as (page, home):
        await page.holds("to be labelled by")
        await page.press("a")
        await page.until("document.activeElement.name === 'assign'")
        await fill(page, "assign", "Bob")
        await fill(page, "comment", "is this the wrong mail?")
        await click(page, "Assign and comment")
        await page.holds("assigned it to Bob: is this the wrong mail?")
        await page.until("document.activeElement === document.body")
        await page.holds("for Bob")
        await fill(page, "assigned", "bob")
        await page.until(f"{queue} === 'e1'")
        await page.until("location.hash.startsWith('#/label/e1?')")
        assert await page.accessibility() == []
        await page.press("1")
        await page.press("Enter")
        await page.holds("There is nothing to label for bob.")
        await page.go(home + "#/episode/e1")
        await page.holds("1 comment, to be labelled by Bob")
        await page.go(home + "#/audit?action=assign")
        await page.holds("text: is this the wrong mail?")
        assert page.errors == []
    status, body = await plane.ask("POST", "/episodes/e1/comments", {})
    assert (status, body["error"]["field"]) == (409, "body.text")
    assert (await plane.ask("POST", "/episodes/nobody/comments", {"text": "x"}))[0] == 404
    assert (await plane.ask("POST", "/episodes/e1/comments", {"text": "x"}, key="k", scopes=["viewer"]))[0] == 403


async def test_what_it_cost_stands_by_version_and_by_tag(make_plane, tmp_path):
    plane = await make_plane(**PLANE)
    await make_demo(plane, batches=1)
    batch = (await plane.ask("GET", "/batches"))[1]["batches"][0]["id"]
    await step_event(plane, 1, batch, seconds=12.0, gpus=2)
    cells = "[...document.querySelector('tr[data-id=\"{}\"]').cells].map(c => c.innerText)"
    async with opened(plane, tmp_path) as (page, _):
        await page.holds("From calls to learning")
        await click(page, "Cost")
        await page.until("!!document.querySelector('tr[data-id=\"tiny@1\"]')")
        base, made = [await page.js(cells.format(name)) for name in ("tiny", "tiny@1")]
        assert (base[7], made[6]) == ("$0.026", "36 s") and base[5] != "0 ms", (base, made)
        assert await page.accessibility() == []
        await fill(page, "by", "tag")
        await page.until("!!document.querySelector('[name=tag]')")
        await fill(page, "tag", "lang")
        await page.until("!!document.querySelector('tr[data-id=de]')")
        german = await page.js(cells.format("de"))
        assert (german[1], german[7]) == ("2", "$0.013")
        assert page.errors == []


async def test_a_model_may_be_called_as_on_a_hub(make_plane, engine, tmp_path):
    """Its name has a slash, also in addresses; its adapters' folders have none."""
    engine.models.add("Qwen/tiny")
    plane = await make_plane(engine={"name": "Qwen/tiny"}, gate={"mode": "manual"})
    write_adapter(plane.config.adapters_dir / "Qwen--tiny@1", 8, 1)
    status, made = await plane.ask("POST", "/adapters?wait=30", {"path": "Qwen--tiny@1"})
    assert status == 201 and (made["name"], made["path"]) == ("Qwen/tiny@1", "Qwen--tiny@1")
    await plane.call("e0", model="Qwen/tiny", trained="Qwen/tiny", adapter="Qwen/tiny@1", task="a/b", done=True)
    await plane.seen("e0")
    await plane.ask("POST", "/episodes/e0/rewards", {"value": 1.0})
    async with opened(plane, tmp_path, "#/adapters") as (page, home):
        await click(page, "Qwen/tiny@1")
        await click(page, "Promote")
        await page.holds("New runs get Qwen/tiny@1")
        await click(page, "Promote Qwen/tiny@1")
        await page.holds("Qwen/tiny@1 is live")
        await page.js("document.querySelector('#behaviour summary').click()")
        await page.holds("has no finished run yet")
        for where, holds in {
            "now": "Qwen/tiny serves",
            "episodes?adapter=Qwen%2Ftiny%401": "e0",
            "cost": "Qwen/tiny@1",
        }.items():
            await page.go(f"{home}#/{where}")
            await page.holds(holds)
        assert page.errors == []
