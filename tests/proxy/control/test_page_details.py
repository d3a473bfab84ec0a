"""The page in a real browser: what is easily lost and seldom looked at."""

from __future__ import annotations

import json

import pytest
from tests.support.browser import CHROMIUM
from tests.support.page_data import EVIL, PLANE, Runs, make_demo, make_tangle, says, step_event
from tests.support.page_views import ROWS, SIDEWAYS, click, fill, opened
from tests.support.plane import until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")
COLOURS = "[...document.querySelectorAll('.tokens span')].map(b => getComputedStyle(b).backgroundColor)"
CLEAR = "rgba(0, 0, 0, 0)"
PRESSED = "[...document.querySelectorAll('button[aria-pressed=true]')].map(b => b.textContent)"
FIGURES = ("log-probability", "advantage", "trainer–engine gap")
SHIFTS = """window.shifts = []; new PerformanceObserver(list => list.getEntries().forEach(e => shifts.push(
    [e.value, ...e.sources.map(s => s.node?.parentElement?.outerHTML.slice(0, 120))]))).observe({type: 'layout-shift', buffered: true})"""
MOST_SHIFT = 0.1
"""What browsers' makers call good, of a page's cumulative layout shift."""
SCROLLS = "document.scrollingElement.scrollHeight > innerHeight"


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["light", "dark"])
async def test_tokens_are_coloured_by_each_figure(make_plane, tmp_path, dark):
    """What is looked at is the colour on the screen: a class that no rule paints would not do."""
    plane = await make_plane(**PLANE)
    await make_demo(plane, batches=1)
    async with opened(plane, tmp_path) as (page, home):
        await page.screen(1440, dark=dark)
        await page.go(home + "#/episode/run-1-1")
        seen = set()
        for name in FIGURES:
            await click(page, name)
            await page.until(f"{PRESSED}.includes({name!r}) && {COLOURS}.some(c => c !== {CLEAR!r})")
            seen.add(tuple(await page.js(COLOURS)))
            assert await page.accessibility() == []
        assert len(seen) == len(FIGURES), "each figure has its own picture"
        strongest = "document.querySelector('.tokens span[class*=up-], .tokens span[class*=down-]')"
        await page.js(f"{strongest}.click()")
        await page.holds("from the engine")
        await page.js("document.querySelector('.tokens').focus()")
        chosen = "Number(document.querySelector('.tokens .chosen').dataset.n)"
        before = await page.js(chosen)
        await page.press("ArrowRight")
        await page.until(f"{chosen} === {before + 1}")
        await page.go(home + "#/episode/tangle")
        gap = f"[...document.querySelectorAll('button')].find(b => b.textContent === {FIGURES[2]!r})"
        await page.until(f"!!({gap}) && ({gap}).disabled")
        assert page.errors == []


async def test_each_filter_finds_what_it_says(make_plane, tmp_path):
    plane = await make_plane(groups={"size": 4})
    now = plane.deps.now()
    old = {"task": "ta", "tags": {"lang": "en"}, "text": "the blue mail", "at": now - 7200, "done": True}
    new = {"task": "tb", "tags": {"lang": "de"}, "text": "the red mail", "adapter": "tiny@1", "split": "eval"}
    called = await plane.call("old", **old)
    await plane.call("new", **new)
    await plane.call("gone", task="tc", outcome="aborted", key="k2")
    for name, value in (("old", 0.2), ("new", 0.9)):
        await plane.seen(name)
        await plane.ask("POST", f"/episodes/{name}/rewards", {"value": value})
    await plane.seen("gone", key="k2")
    finds = {
        "q=blue": ["old"], f"q={called}": ["old"], "q=%22red%20mail%22": ["new"], "task=tb": ["new"], "tag=lang:en": ["old"],
        "tag=lang": ["new", "old"], "adapter=tiny%401": ["new"], "split=eval": ["new"], "state=done": ["new", "old"], "outcome=aborted": ["gone"],
        "trainable=false": ["gone"], "trainable=true": ["new", "old"], "reward_min=0.5": ["new"], "reward_max=0.5": ["old"], "since=1h": ["gone", "new"],
        "until=1h": ["old"], "key=k2": ["gone"], "q=mail&tag=lang:de&since=1h": ["new"], "task=nobody": [],
    }  # fmt: skip
    shown = "[...document.querySelectorAll('tbody tr[data-id]')].map(r => r.dataset.id.split('/')[1]).sort()"
    async with opened(plane, tmp_path, "#/episodes") as (page, home):
        await page.until(f"{ROWS} === 3")
        for query, ids in finds.items():
            await page.go(f"{home}#/episodes?{query}")
            name = query.split("=")[0]
            wanted = json.dumps(ids, separators=(",", ":"))
            await page.until(f"!!document.querySelector('[name={name}]')?.value")
            await page.until(f"JSON.stringify({shown}) === {wanted!r}")
        await page.holds("No episode fits these filters.")
        assert page.errors == []


async def test_a_label_half_written_stays_while_the_queue_moves(make_plane, tmp_path):
    plane = await make_plane(groups={"size": 4})
    runs = Runs(plane)
    await runs.talk("mine", 0, done=True)
    await runs.reward("mine", 1.0)
    async with opened(plane, tmp_path, "#/label") as (page, _):
        await page.until("location.hash.startsWith('#/label/mine') && !!document.querySelector('[name=note]')")
        await fill(page, "note", "half a sentence")
        for n in range(2):
            await runs.talk(f"other{n}", 0, done=True)
        await page.until("document.querySelectorAll('nav[aria-label=Queue] li').length === 3")
        await page.until("document.querySelector('nav[aria-label=Queue] li').innerText.startsWith('other')")
        assert await page.js("document.querySelector('[name=note]').value") == "half a sentence"
        assert await page.js("document.querySelector('nav [aria-current=true]').innerText") == "mine"
        assert page.errors == []


TYPED_AT_ONCE = """new MutationObserver((_, seen) => { const i = document.querySelector('[name=note]'); if (!i) return;
    seen.disconnect(); i.value = 'typed at once'; i.dispatchEvent(new Event('input', {bubbles: true})); window.typed = true
}).observe(document.body, {childList: true, subtree: true}), 0"""


async def test_what_is_typed_before_the_first_paint_stays(make_plane, tmp_path):
    """What clears the form for the next episode runs after a paint, which a busy browser puts off."""
    plane = await make_plane(groups={"size": 4})
    runs = Runs(plane)
    for name in ("one", "two"):
        await runs.talk(name, 0, done=True)
    note = "document.querySelector('[name=note]').value"
    async with opened(plane, tmp_path, "#/episodes") as (page, _):
        await page.until(f"{ROWS} === 2")
        await page.js(TYPED_AT_ONCE)
        await page.js("location.hash = '#/label/one?key=-', 0")
        await page.until("window.typed && document.querySelectorAll('nav[aria-label=Queue] li').length === 2")
        await page.js("new Promise(done => setTimeout(done, 300))")
        assert await page.js(note) == "typed at once"
        await page.js("location.hash = '#/label/two?key=-', 0")
        await page.until("document.querySelector('nav [aria-current=true]')?.innerText === 'two'")
        await page.until(f"{note} === ''")
        assert page.errors == []


async def make_hostile(plane) -> dict[str, str]:
    """Whatever an agent may send. View → a text that it shows."""
    runs = Runs(plane)
    await make_demo(plane, batches=1)
    for n in range(4):
        tags = {"lang": "<b>" * 40, "a" * 60: "b" * 60}
        await runs.talk(f"evil{n}", 2, evil=EVIL, task="t" * 120, tags=tags, adapter="tiny@1")
        await runs.reward(f"evil{n}", n / 3, reason=EVIL)
    await runs.talk("x" * 128, 1, evil="y" * 5000)
    await runs.call("broken", [says("hi")], outcome="error", status=500)
    await runs.call("samples", [says("hi")], *[says(f"{n} {EVIL}") for n in range(8)])
    for n in range(60):
        await step_event(plane, 2 + n, f"b{n}", loss=1e9 if n == 40 else 0.01 * (n % 7), reason=EVIL, adapter=EVIL)
    await plane.ask("POST", "/annotations", {"text": EVIL * 3})
    await plane.ask("POST", "/training/pause", {"reason": EVIL})

    async def group():
        return (await plane.ask("GET", f"/groups?task={'t' * 120}"))[1]["groups"]

    (found,) = await until(group)
    return {
        "now": "What happens next", "episodes": "trial-16", "episode/evil1": "planted", "episode/samples": "sample 8 of 8", "episode/broken": "out of memory",
        f"episode/{'x' * 128}": "yyyy", "groups": found["id"], f"group/{found['id']}": "planted", "adapters?adapter=tiny%401": "trained on",
        "training?over=time&by=time&each=tag.lang": "1 outlying value", "judge": "Agreement", "label/evil2": "planted", "audit": "pause",
    }  # fmt: skip


@pytest.mark.slow
async def test_nothing_that_an_agent_sends_breaks_a_view(make_plane, tmp_path):
    """Long words, markup, failures, a loss of a billion: on a phone and in the dark, nothing runs, nothing sticks out."""
    plane = await make_plane(**PLANE)
    views = await make_hostile(plane)
    async with opened(plane, tmp_path) as (page, home):
        wrong: list[str] = []
        for where, holds in views.items():
            for width, dark in ((390, False), (1440, True)):
                await page.screen(width, dark=dark)
                await page.go(f"{home}#/{where}")
                await page.holds(holds)
                wrong += [f"{where} at {width} px: {v}" for v in await page.accessibility()]
                wrong += [f"{where} scrolls sideways at {width} px: {v}" for v in await page.js(SIDEWAYS)]
                assert await page.js("document.getElementById('planted')") is None
                assert await page.js("window.pwned") is None
        assert wrong == []
        assert page.errors == []


@pytest.mark.slow
async def test_nothing_jumps_while_a_view_comes(make_plane, tmp_path):
    plane = await make_plane(**PLANE)
    await make_demo(plane)
    views = {
        "now": "trial-23", "episodes": "trial-23", "episode/run-1-1": "Moved it to Work", "groups": "inbox-2", "adapters?adapter=tiny%403": "How the difference moved",
        "training": "Trainer–engine gap", "judge": "Agreement", "label/run-1-0": "Sort mail number run-1-0.", "audit": "it is better",
    }  # fmt: skip
    async with opened(plane, tmp_path) as (page, home):
        await page.ask("Page.addScriptToEvaluateOnNewDocument", source=SHIFTS)
        wrong = []
        for width in (1440, 390):
            await page.screen(width)
            for where, holds in views.items():
                await page.go(f"{home}#/{where}")
                await page.holds(holds)
                await page.settled()  # what comes after the view's data
                shifts = await page.js("shifts")
                if sum(shift[0] for shift in shifts) >= MOST_SHIFT:
                    wrong.append((where, width, shifts))
        assert wrong == []


async def test_a_long_table_ends_with_the_window(make_plane, tmp_path):
    plane = await make_plane(groups={"size": 2})
    for n in range(120):
        await plane.call(f"e{n:03}", task=f"t{n // 2}", done=True)
    await plane.seen("e119")
    async with opened(plane, tmp_path) as (page, home):
        for view in ("episodes", "groups"):
            await page.go(f"{home}#/{view}")
            await page.until(f"{ROWS} > 20")
            await page.until(f"!({SCROLLS})")
        await page.go(home + "#/audit")
        await page.holds("Nothing was changed by hand")


async def test_one_long_name_does_not_take_the_columns_from_all_rows(make_plane, tmp_path):
    plane = await make_plane()
    for n in range(4):
        text = "Book a flight to Oslo" + " and back" * 30
        await plane.call(
            f"{'long-' * 24}{n}", task="x" * 120, tags={"task-text": text, "lang": "de"}, adapter="tiny@" + "9" * 90
        )
    await plane.call("short")
    await plane.seen("short")
    right = "[...document.querySelectorAll('th')].find(t => t.textContent === {!r}).getBoundingClientRect().right"
    async with opened(plane, tmp_path, "#/episodes") as (page, _):
        for width, column in ((1440, "calls"), (390, "task")):
            await page.screen(width)
            await page.until(f"{ROWS} === 5")
            edge = await page.js("document.querySelector('.scroll').getBoundingClientRect().right")
            assert await page.js(right.format(column)) <= edge, f"{column} is in sight at {width} px"
        ends = "[...document.querySelectorAll('tr[data-id*=long] .ends > :last-child')]"
        seen = f"{ends}.map(e => [e.innerText, e.getBoundingClientRect().right <= e.closest('td').getBoundingClientRect().right])"
        told = await page.js(seen)  # on a phone, too, rows can be told apart
        assert len({name for name, _ in told}) == 4 and all(inside for _, inside in told)
        task = "document.querySelectorAll('tr[data-id*=long] td')[1]"
        assert (await page.js(f"{task}.innerText")).startswith("Book a flight to Oslo")
        assert await page.js(f"{task}.title") == text
        assert await page.accessibility() == []


async def test_an_edit_is_of_the_call_that_it_was_written_at(make_plane, tmp_path):
    """The history was compacted: the run's last answer is not that of its longest conversation."""
    plane = await make_plane(groups={"size": 4})
    ids = await make_tangle(Runs(plane))

    async def labelled():
        return [r for r in (await plane.ask("GET", "/episodes/tangle"))[1]["rewards"] if r["source"] == "human"]

    async with opened(plane, tmp_path, "#/label/tangle") as (page, _):
        await page.holds("Here is the report.")
        await click(page, "Write a better last answer")
        await fill(page, "edited", "A shorter report.")
        await click(page, "good")
        await click(page, "Save 1")
        (saved,) = await until(labelled)
        assert saved["meta"] == {"edited": "A shorter report.", "edited_call": ids["compaction"]}
        rows = (await plane.ask("GET", "/export", params={"format": "sft"}))[1].splitlines()
        messages = json.loads(rows[0])["messages"]
        assert messages[-1]["content"] == "A shorter report." and messages[-2]["content"].startswith("Summary so far")
        assert page.errors == []


async def test_no_figure_is_made_up_for_what_was_imported(make_plane, tmp_path):
    plane = await make_plane()
    said = [{"role": "user", "content": "Oslo, please"}, {"role": "assistant", "content": "Booked."}]
    body = {"id": "elsewhere", "model": "gpt-4o", "messages": said, "at": plane.deps.now() - 60}
    assert (await plane.ask("POST", "/import", body))[0] == 200
    await plane.seen("elsewhere")
    async with opened(plane, tmp_path, "#/episode/elsewhere") as (page, home):
        await page.holds("times, tokens and parameters are not known")
        shown = await page.js("document.querySelector('main').innerText")
        assert "Booked." in shown
        for made_up in ("0 ms", "1 ms", "0 tokens", "temperature"):
            assert made_up not in shown
        await page.go(home + "#/episodes")
        await page.until(f"{ROWS} === 1")
        assert " ms" not in await page.js("document.querySelector('tr[data-id]').innerText")
        assert page.errors == []


async def test_rows_that_do_not_come_are_told_and_asked_for_again(make_plane, tmp_path):
    plane = await make_plane()
    for n in range(150):
        await plane.call(f"e{n:03}", done=True)
    await plane.seen("e149")
    async with opened(plane, tmp_path) as (page, home):
        await page.ask("Network.setBlockedURLs", urls=["*cursor=*"])
        await page.go(home + "#/episodes")
        await page.until(f"{ROWS} > 20")
        box = "document.querySelector('.scroll')"
        await page.js(f"{box}.scrollTop = {box}.scrollHeight")
        await page.holds("The next rows did not come")
        assert await page.accessibility() == []
        await page.ask("Network.setBlockedURLs", urls=[])
        await click(page, "Ask again")
        await page.until("document.querySelector('main [role=status]').innerText.startsWith('150')")
        assert "The next rows" not in await page.js("document.body.innerText")


async def test_the_export_holds_what_is_shown(make_plane, tmp_path):
    plane = await make_plane()
    for n in range(5):
        await plane.call(f"e{n}", task=f"t{n % 2}", done=True)
    await plane.seen("e4")
    folder = tmp_path / "downloads"
    folder.mkdir()
    async with opened(plane, tmp_path, "#/episodes?task=t1") as (page, _):
        await page.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        await page.until(f"{ROWS} === 2")
        await click(page, "Export all that match")

        def saved():
            return [json.loads(line)["id"] for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]

        assert sorted(await until(saved)) == ["e1", "e3"]
        assert page.errors == []
