"""The page in a real browser: what it shows, what it does when asked, and that a transcript cannot do anything there."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest
from tests.support.browser import CHROMIUM
from tests.support.page_data import EVIL, PLANE, Runs, make_demo, make_tangle, report, step_event
from tests.support.page_views import ROWS, SIDEWAYS, click, fill, opened, text
from tests.support.plane import until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")
DOCS = Path(__file__).parents[3] / "docs"
PICTURES = set(re.findall(r"pictures/([\w-]+\.png)", (DOCS / "page.md").read_text()))
"""What the documentation shows."""


@pytest.mark.slow
async def test_each_view_of_a_day_s_work(make_plane, tmp_path):
    """Light, dark and on a phone; nothing goes wrong in any, and axe finds nothing. Takes the documentation's pictures."""
    plane = await make_plane(**PLANE)
    await make_demo(plane)
    found = (await plane.ask("GET", "/groups?task=inbox-2&state=trained"))[1]["groups"][0]
    group, batch = found["id"], found["batch"]
    pictures = Path(os.environ.get("PAGE_PICTURES", tmp_path / "pictures"))
    views = {
        "now": ("#/now", "trial-23"),
        "episodes": ("#/episodes", "trial-23"),
        "episode": ("#/episode/tangle", "Sort the mail of today."),
        "groups": ("#/groups", "inbox-2"),
        "group": (f"#/group/{group}", "equal lines"),
        "adapters": ("#/adapters?adapter=tiny%403", "Guards"),
        "training": ("#/training", "Trainer–engine gap"),
        "batch": (f"#/training?batch={batch}", "run-2-3"),
        "tasks": ("#/tasks", "inbox-3"),
        "cost": ("#/cost", "tiny@2"),
        "judge": ("#/judge", "judge-1"),
        "label": ("#/label/run-1-0", "Sort mail number run-1-0."),
        "audit": ("#/audit", "it is better"),
        "plug-ins": ("#/plugins", "logs of other programs"),
    }
    async with opened(plane, tmp_path) as (page, home):
        wrong: list[str] = []
        for name, (where, holds) in views.items():
            for width, dark in ((1440, False), (1440, True), (390, False)):
                await report(plane)
                await page.screen(width, dark=dark)
                await page.go(home + where)
                await page.holds(holds)
                await asyncio.sleep(0.3)
                wrong += [f"{name} at {width} px, dark={dark}: {v}" for v in await page.accessibility()]
                wrong += [f"{name} scrolls sideways at {width} px: {v}" for v in await page.js(SIDEWAYS)]
                look = "-phone" if width == 390 else "-dark" if dark else ""
                if f"{name}{look}.png" in PICTURES:
                    await page.picture(pictures / f"{name}{look}.png")
        assert wrong == []
        assert {file.name for file in pictures.iterdir() if file.stat().st_size > 10_000} == PICTURES
        assert page.errors == []


async def test_the_first_call_turns_the_empty_page_into_the_first_episode(make_plane, tmp_path):
    plane = await make_plane()
    async with opened(plane, tmp_path) as (page, home):
        await page.holds("No call has come yet")
        assert f"export OPENAI_BASE_URL={home.rstrip('/')}/v1" in await text(page)
        assert await page.accessibility() == []
        await plane.call("first-of-all")
        await page.holds("first-of-all", 10.0)
        assert page.errors == []


async def test_a_new_call_is_on_the_page_within_two_seconds(make_plane, tmp_path):
    plane = await make_plane()
    await plane.call("old")
    await plane.seen("old")
    async with opened(plane, tmp_path, "#/episodes") as (page, _):
        await page.until(f"{ROWS} === 1")
        await asyncio.sleep(1.0)
        began = asyncio.get_running_loop().time()
        await plane.call("new")
        await page.until("!!document.querySelector('tr[data-id=\"-/new\"]')", 10.0)
        assert asyncio.get_running_loop().time() - began <= 2.0


async def test_the_tree_shows_what_each_call_was(make_plane, tmp_path):
    plane = await make_plane(**PLANE)
    ids = await make_tangle(Runs(plane))
    async with opened(plane, tmp_path, "#/episode/tangle") as (page, _):
        await page.until(f"document.querySelectorAll('[role=treeitem]').length === {len(ids)}")
        rows = await page.js("""[...document.querySelectorAll('[role=treeitem]')].map(
            r => [r.innerText.split('\\n').join(' ').trim(), r.dataset.kind, Number(r.getAttribute('aria-level'))])""")
        kinds = {int(label.split()[0]) - 1: (kind, level) for label, kind, level in rows}
        order = list(ids)
        of = {name: kinds[order.index(name)] for name in order}
        assert of["start"] == ("start", 1)
        for n in range(4):
            assert of[f"helper{n}"] == ("subagent", 2) and of[f"helper{n}b"] == ("turn", 2)
        assert of["failed"] == ("failed", 2) and of["retry"] == ("retry", 1) and of["turn"] == ("turn", 1)
        assert of["edit"] == ("edit", 2) and of["compaction"] == ("compaction", 1)
        # every prompt can be read: each call's own words stand in its transcript
        for name, words in {
            "helper2b": "sender 2 is known",
            "edit": "No, leave them",
            "failed": "out of memory",
            "samples": "sample 2 of 2",
            "compaction": "Summary so far",
        }.items():
            await page.js(
                f"document.querySelectorAll('[role=treeitem]')[{[r[0].split()[0] for r in rows].index(str(order.index(name) + 1))}].click()"
            )
            await page.until(f"location.hash.includes({ids[name]!r})")
            await page.until(f"document.querySelector('[aria-label=Transcript]').innerText.includes({words!r})")
            assert ids[name] in await page.js("document.querySelector('[aria-label=Inspector]').innerText")
        shown = await page.js("document.querySelector('[aria-label=Transcript]').innerText")
        assert shown.count("ask_helper") <= 1, "a tool call stands once"


async def test_a_bad_filter_is_told_where_it_stands(make_plane, tmp_path):
    plane = await make_plane()
    for n in range(3):
        await plane.call(f"e{n}", task=f"t{n}")
        await plane.seen(f"e{n}")
    async with opened(plane, tmp_path, "#/episodes") as (page, home):
        await page.until(f"{ROWS} === 3")
        await fill(page, "reward_min", "much")
        await page.until("!!document.querySelector('[name=reward_min][aria-invalid=true]')")
        assert "a number, as 0.5" in await text(page) and await page.js(ROWS) == 0
        assert await page.accessibility() == []
        await fill(page, "reward_min", "")
        await fill(page, "task", "t1")
        await page.until(f"{ROWS} === 1 && location.hash.includes('task=t1')")
        await page.go(home + "#/episodes?task=t2&reward_max=1e99")
        await page.until("!!document.querySelector('[name=reward_max][aria-invalid=true]')")
        assert await page.js(ROWS) == 0, "what the proxy refuses leaves no stale rows"
        assert not [e for e in page.errors if "Uncaught" in e or "Content Security" in e]


async def test_what_is_wrong_stands_at_the_top_the_worst_first_and_remarks_are_folded(make_plane, tmp_path):
    plane = await make_plane(**PLANE)
    await make_demo(plane, 1)
    assert (await plane.ask("POST", "/training/pause", {"reason": "for the night"}))[0] == 200
    lines = (await plane.ask("GET", "/status"))[1]["funnel"]["lines"]
    order = ["blocks", "slows", "remark"]
    severities = [line["severity"] for line in lines]
    assert severities == sorted(severities, key=order.index) and len(set(severities)) > 1
    async with opened(plane, tmp_path, "#/now") as (page, _):
        await page.until("!!document.querySelector('.causes li')")
        top = await page.js("[...document.querySelectorAll('.causes > ol > li')].map(l => l.dataset.severity)")
        assert top == [s for s in severities if s != "remark"] and top
        assert lines[0]["text"] in await page.js("document.querySelector('.causes').innerText")
        assert await page.js("document.querySelector('main h1').nextElementSibling.className") == "causes"
        folded = "document.querySelector('.causes details')"
        assert not await page.js(f"{folded}.open")
        assert f"{severities.count('remark')} remark" in await page.js(f"{folded}.querySelector('summary').innerText")
        assert await page.js(f"{folded}.querySelectorAll('li').length") == severities.count("remark")
        assert await page.accessibility() == [] and page.errors == []


async def test_filters_are_saved_under_a_name_and_come_back_by_a_link(make_plane, tmp_path):
    plane = await make_plane()
    for n in range(3):
        await plane.call(f"e{n}", task=f"t{n}")
        await plane.seen(f"e{n}")
    saved = "document.querySelector('[aria-label=\"Saved filters\"]')"
    async with opened(plane, tmp_path, "#/episodes?task=t1") as (page, home):
        await page.until(f"{ROWS} === 1")
        assert not await page.js(f"!!{saved}")
        await fill(page, "saved_name", EVIL[:60])
        await click(page, "Save")
        await page.until(f"!!{saved}")
        assert await page.js(f"{saved}.querySelector('a').innerText") == EVIL[:60]
        await page.go(home + "#/now")
        await page.go(home + "#/episodes")
        await page.until(f"{ROWS} === 3 && !!{saved}")
        await page.js(f"{saved}.querySelector('a').click()")
        await page.until(f"{ROWS} === 1 && location.hash.includes('task=t1')")
        assert await page.accessibility() == []
        await page.js(f"{saved}.querySelector('button').click()")
        await page.until(f"!{saved}")
        assert await page.js("localStorage.getItem('saved-filters')") == "{}"
        assert page.errors == []


async def test_keys_go_through_the_rows_and_to_the_search(make_plane, tmp_path):
    plane = await make_plane()
    for n in range(3):
        await plane.call(f"e{n}")
        await plane.seen(f"e{n}")
    async with opened(plane, tmp_path, "#/episodes") as (page, _):
        await page.until(f"{ROWS} === 3")
        await page.press("j")
        await page.until("document.querySelector('tr.chosen')?.dataset.id === '-/e2'")
        await page.press("j")
        await page.until("document.querySelector('[aria-label=Preview]').innerText.includes('e1')")
        await page.press("k")
        await page.until("document.querySelector('tr.chosen')?.dataset.id === '-/e2'")
        await page.press("/")
        await page.until("document.activeElement.name === 'q'")
        await page.press("Escape")
        await page.until("document.activeElement.name !== 'q'")
        await page.press("?")
        await page.until("!!document.querySelector('dialog[open]')")
        assert await page.accessibility() == []
        await page.press("Escape")
        await page.until("!document.querySelector('dialog[open]')")
        await page.press("Enter")
        await page.until("location.hash.startsWith('#/episode/e2')")
        assert page.errors == []


async def test_a_proxy_that_goes_away_is_told_and_asked_again(make_plane, tmp_path):
    plane = await make_plane()
    await plane.call("before")
    await plane.seen("before")
    async with opened(plane, tmp_path, "#/episodes") as (page, _):
        await page.until(f"{ROWS} === 1")
        await page.offline(True)
        await page.js("dispatchEvent(new HashChangeEvent('hashchange'))")
        await fill(page, "task", "t1")
        await page.until("!!document.querySelector('.banner[role=alert]')", 20.0)
        assert await page.accessibility() == []
        await plane.call("meanwhile")
        await plane.seen("meanwhile")
        await page.offline(False)
        await page.until(f"!document.querySelector('.banner[role=alert]') && {ROWS} === 2", 20.0)
        assert not [e for e in page.errors if "Uncaught" in e]


async def test_a_restarted_proxy_is_found_again(make_plane, tmp_path):
    plane = await make_plane()
    await plane.call("before")
    await plane.seen("before")
    async with opened(plane, tmp_path, "#/episodes") as (page, _):
        await page.until(f"{ROWS} === 1")
        port = plane.client.port
        await plane.stop()
        await page.until("!!document.querySelector('.banner[role=alert]')", 20.0)
        plane.port = port
        await plane.again()
        await plane.call("after")
        await plane.seen("after")
        await page.until(f"!document.querySelector('.banner[role=alert]') && {ROWS} === 2", 30.0)
        assert not [e for e in page.errors if "Uncaught" in e]


async def test_whatever_stands_in_a_field_is_text(make_plane, tmp_path):
    plane = await make_plane(groups={"size": 2})
    runs = Runs(plane)
    for n in range(2):
        await runs.talk(f"evil{n}", 1, evil=EVIL)
        await runs.reward(f"evil{n}", n / 2, reason=EVIL)
    async with opened(plane, tmp_path) as (page, home):
        group = (await plane.ask("GET", "/groups"))[1]["groups"][0]["id"]
        await plane.ask("POST", "/annotations", {"text": EVIL})
        await plane.ask("POST", "/training/pause", {"reason": EVIL})
        await step_event(plane, 1, "b1", reason=EVIL, adapter=EVIL)
        views = (
            "now", "episodes", "episode/evil1", "groups", f"group/{group}", "adapters", "training?over=time", "judge",
            "label/evil0", "audit", f"episode/{EVIL}", EVIL, f"episodes?q={EVIL}&task={EVIL}", f"group/{EVIL}",
            f"training?batch={EVIL}",
        )  # fmt: skip
        for where in (f"#/{view}" for view in views):
            await page.go(home + where)
            await page.settled()
            assert await page.js("document.getElementById('planted')") is None
            assert await page.js("window.pwned") is None
        await page.go(home + "#/episode/evil1")
        await page.holds('<b id="planted">')
        assert not [e for e in page.errors if "Uncaught" in e or "Content Security" in e or "TrustedHTML" in e]


@pytest.mark.slow
async def test_a_message_of_a_megabyte_and_a_run_of_two_hundred_calls(make_plane, tmp_path):
    plane = await make_plane(groups={"size": 2})
    runs = Runs(plane)
    await plane.call("big", text="word " * 210_000)
    await plane.seen("big")
    await runs.talk("long", 199)

    async def stored():
        return (await plane.seen("long"))["calls"] == 200

    await until(stored)
    async with opened(plane, tmp_path, "#/episode/big") as (page, home):
        await page.holds("Show more")
        assert await page.js("document.body.innerText.length") < 20_000
        assert await page.accessibility() == []
        await page.go(home + "#/episode/long")
        await page.holds("Moved it to Work.")
        assert await page.js("document.querySelectorAll('[role=treeitem]').length") < 120, (
            "rows out of sight are not drawn"
        )
        assert await page.accessibility() == []
        assert page.errors == []


@pytest.mark.slow
async def test_ten_thousand_episodes_scroll_as_ten_do(make_plane, tmp_path):
    plane = await make_plane(groups={"size": 8})
    for n in range(10_000):
        await plane.call(f"e{n:05}", task=f"t{n % 50}", done=True)

    async def stored():
        return (await plane.ask("GET", "/status"))[1]["calls"] == 10_000

    await until(stored, 120.0)
    async with opened(plane, tmp_path, "#/episodes") as (page, home):
        await page.until(f"{ROWS} > 20")
        box = "document.querySelector('.scroll')"
        for _ in range(20):
            await page.js(f"{box}.scrollTop = {box}.scrollHeight")
            await page.settled(0.05)
        loaded = await page.js("document.querySelector('main [role=status]').innerText")
        assert int(loaded.split()[0].replace(",", "")) >= 1000, loaded
        assert await page.js(ROWS) < 100, "rows out of sight are not drawn"
        assert await page.accessibility() == []
        await page.go(home + "#/now")
        await page.holds("10,000 episodes")
        assert page.errors == []


async def test_an_adapter_is_promoted_and_taken_back_by_hand(make_plane, tmp_path):
    plane = await make_plane(**PLANE)
    await make_demo(plane, batches=3)

    def live(name: str):
        async def look():
            return (await plane.ask("GET", "/adapters"))[1]["live"]["tiny"] == name

        return look

    async with opened(plane, tmp_path, "#/adapters?adapter=tiny%403") as (page, home):
        await click(page, "Promote")
        await page.holds("New runs get tiny@3, without a trial.")
        await fill(page, "reason", "looks good")
        await click(page, "Promote tiny@3")
        await until(live("tiny@3"))
        await page.holds("tiny@3 is live")
        await click(page, "Demote")
        await page.holds("New runs get tiny@2.")
        assert await page.accessibility() == []
        await click(page, "Demote tiny@3")
        await until(live("tiny@2"))
        await page.holds("tiny@3 is rolled back")
        shutil.rmtree(plane.config.adapters_dir / "tiny@1")
        await page.go(home + "#/adapters?adapter=tiny%401")
        await page.holds("It cannot be promoted: its files are gone.")
        assert "Promote" not in await page.js("[...document.querySelectorAll('button')].map(b => b.textContent)")
        await page.go(home + "#/audit")
        await page.holds("looks good")
        assert page.errors == []


@pytest.mark.slow
async def test_how_the_gate_s_evidence_moved_is_drawn_and_goes_on(make_plane, tmp_path):
    plane = await make_plane(**PLANE)
    await make_demo(plane, batches=1)
    await plane.again()

    async def read():
        return len((await plane.ask("GET", "/adapters/tiny@1/evidence"))[1]["readings"]) == 24

    await until(read)
    points = "document.querySelector('[aria-label^=\"The gate\\'s difference\"]')?.ariaLabel.match(/difference: (\\d+)/)?.[1]"
    async with opened(plane, tmp_path, "#/adapters?adapter=tiny%401") as (page, _):
        await page.holds("How close it was to being taken back")
        before = int(await page.js(points))
        assert before >= 15
        runs = Runs(plane, hours=0)
        await runs.talk("one-more", 0, adapter="tiny@1", chances="live=0.7 control=0.3", done=True)
        await runs.reward("one-more", 0.9)
        await page.until(f"Number({points}) === {before + 1}")
        await page.js("document.querySelector('#behaviour summary').click()")
        await page.until("document.querySelector('#behaviour [data-id=turns]')?.innerText.includes(' of ')")
        await page.js("document.querySelector('#behaviour [data-id=turns] td a').scrollIntoView()")
        assert await page.accessibility() == []
        assert page.errors == []


async def test_a_person_labels_pauses_and_notes(make_plane, tmp_path):
    plane = await make_plane(groups={"size": 4})
    runs = Runs(plane)
    for n in range(3):
        await runs.talk(f"e{n}", 1, done=n < 9)
    await plane.seen("e2")
    async with opened(plane, tmp_path, "#/label/e1?key=-") as (page, home):
        await page.holds("Sort mail number e1.")
        await click(page, "bad")
        await fill(page, "note", "it moved the wrong mail")
        await click(page, "Write a better last answer")
        await fill(page, "edited", "I moved nothing.")
        assert await page.accessibility() == []
        await click(page, "Save 0")

        async def labelled():
            return (await plane.ask("GET", "/episodes/e1"))[1]["rewards"]

        (reward,) = await until(labelled)
        assert (reward["value"], reward["source"], reward["reason"]) == (0.0, "human", "it moved the wrong mail")
        last = (await plane.ask("GET", "/episodes/e1"))[1]["call_list"][-1]["id"]
        assert reward["meta"] == {"edited": "I moved nothing.", "edited_call": last}
        await page.until("!location.hash.includes('e1')")
        await page.go(home + "#/training")
        await page.until("!!document.querySelector('[name=annotation]')")
        await fill(page, "annotation", "a new prompt")
        await click(page, "Note it on the time axis")

        async def noted():
            return [a["text"] for a in (await plane.ask("GET", "/annotations"))[1]["annotations"]]

        assert await until(noted) == ["a new prompt"]
        await click(page, "Pause training")
        await page.holds("training is paused")
        assert (await plane.ask("GET", "/training/paused"))[1]["paused"]
        await click(page, "Resume training")
        await page.until("!document.body?.innerText.includes('training is paused')")
        assert not (await plane.ask("GET", "/training/paused"))[1]["paused"]
        assert page.errors == []


@pytest.mark.slow
async def test_a_viewer_sees_all_and_is_told_what_it_may_not(make_plane, tmp_path):
    plane = await make_plane(**PLANE)
    await make_demo(plane, batches=1)
    async with opened(plane, tmp_path) as (page, home):
        await page.ask("Network.setExtraHTTPHeaders", headers=plane.as_("wall", ["viewer"]))
        for where, holds in {
            "#/episodes": "run-1-0",
            "#/episode/run-1-0?key=-": "Sort mail",
            "#/audit": "Audit",
        }.items():
            await page.go(home + where)
            await page.holds(holds)
        offered = "[...document.querySelectorAll('main button')].map(b => b.textContent.trim())"
        changes = {"Promote", "Demote", "Freeze", "Pause training", "Note it on the time axis", "Save"}
        for where, told in {
            "#/adapters?adapter=tiny%401": "To promote or demote takes a key with the scope admin.",
            "#/training": "To pause training and write notes takes a key with the scope trainer.",
            "#/label/run-1-0": "To label takes a key with the scope grade.",
        }.items():
            await page.go(home + where)
            await page.holds(told)
            assert changes.isdisjoint(await page.js(offered))
            assert await page.accessibility() == []
        promoted = "fetch('/slipstream/v1/adapters/tiny@1/promote', {method: 'POST', body: '{}'}).then(r => r.status)"
        assert await page.js(promoted) == 403
        assert (await plane.ask("GET", "/adapters"))[1]["live"]["tiny"] == "tiny"


async def test_what_steers_a_text_is_a_sign_on_the_page(make_plane, tmp_path):
    plane = await make_plane()
    await plane.call("odd", text="turned \u202eround\u2066 \x1b[31mred\x9b and \u200f", reply="ok \u202e\x07", task="t")
    await plane.seen("odd")
    async with opened(plane, tmp_path, "#/episode/odd") as (page, _):
        await page.holds("‹U+202E›round‹U+2066› ␛[31mred‹U+009B› and ‹U+200F›")
        shown = await page.js("document.documentElement.innerHTML")
        assert not set(shown) & set("\u202e\u2066\u200f\x1b\x9b\x07")
        assert page.errors == []
