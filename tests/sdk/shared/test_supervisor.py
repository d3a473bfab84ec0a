"""Children as one, with small shells as children."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.support import process, until, wait_for

from slipstream.shared.processes import supervisor as module
from slipstream.shared.processes.process import reap_group
from slipstream.shared.processes.supervisor import Child, ChildState, Supervisor


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(module, "LAST_PAUSE", 0.02)


class Lines(list[str]):
    def __call__(self, name: str, line: str) -> None:
        self.append(f"{name}: {line}")


def sh(name: str, script: str, **more: object) -> Child:
    return Child(name, ["/bin/sh", "-c", script], **more)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_output_is_prefixed_and_errors_too(capsys: pytest.CaptureFixture[str]) -> None:
    supervisor = Supervisor()
    child = supervisor.start(sh("engine", "echo one; echo two >&2; printf three", may_end=True))
    await until(lambda: child.exit_code is not None)
    await supervisor.stop()
    assert capsys.readouterr().err == "engine   | one\nengine   | two\nengine   | three\n"
    assert list(child.tail) == ["one", "two", "three"]


async def test_a_child_sees_its_environment_and_no_terminal() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    child = supervisor.start(sh("c", 'echo "$COLOUR $HOME"; cat; echo end', env={"COLOUR": "red"}, may_end=True))
    await until(lambda: child.exit_code is not None)
    await supervisor.stop()
    assert lines == [f"c: red {os.environ['HOME']}", "c: end"]


def test_last_words() -> None:
    child = Child("engine", [])
    assert child.last_words() == "it printed nothing"
    child.tail.extend(["one", "two "])
    assert child.last_words() == "two"
    child.tail.extend(["ValueError: no", "goodbye"])
    assert child.last_words() == "ValueError: no"


def test_how_it_ended_and_its_last_error_if_there_is_one() -> None:
    child = Child("trainer", [], exit_code=-9)
    child.tail.append("12:00:00 info    step 3")
    assert child.end() == "was ended by signal 9 (SIGKILL)"
    child.tail.append("ValueError: long ago")
    assert child.end() == "was ended by signal 9 (SIGKILL); its last error: ValueError: long ago"
    child.exit_code = 1
    assert child.end() == "ended with exit code 1: ValueError: long ago"
    child.ended_for = "it did not answer for 60 s"
    assert child.end() == "was ended by `slipstream up`: it did not answer for 60 s"


async def test_one_whose_work_is_done_is_left_alone() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    child = supervisor.start(sh("c", "exit 0", may_end=True))
    await asyncio.gather(*supervisor._tasks)
    assert (child.starts, child.exit_code, child.state) == (1, 0, ChildState.ENDED)
    assert not supervisor.stopping.is_set()
    supervisor.stopping.set()
    assert await supervisor.wait() == 0
    await supervisor.stop()
    assert lines == []


async def test_a_server_that_ends_with_0_is_started_again() -> None:
    """vLLM's server ends so when its engine core is killed."""
    supervisor = Supervisor(lines := Lines())
    child = supervisor.start(sh("c", "exit 0", max_failures=None))
    await until(lambda: child.starts >= 9)
    assert not child.gave_up
    await supervisor.stop()
    assert lines[0] == "c: ended with exit code 0; restarted in 0.01 s"


@pytest.mark.parametrize("code", [0, 1, 2, 3, 127, 139])
async def test_one_that_is_not_essential_ends_nobody(code: int) -> None:
    seen: list[dict[str, ChildState]] = []
    supervisor = Supervisor(lines := Lines(), lambda children: seen.append({c.name: c.state for c in children}))
    server = supervisor.start(sh("server", "exec sleep 600"))
    sidecar = supervisor.start(sh("c", f"echo sorry; exit {code}", essential=False, max_failures=3, hopeless=()))
    await until(lambda: sidecar.gave_up)
    await asyncio.sleep(0.1)
    assert (sidecar.starts, sidecar.exit_code, sidecar.last_words()) == (3, code, "sorry")
    assert not supervisor.stopping.is_set()
    assert server.process is not None and alive(server.process.pid) and server.starts == 1
    assert seen[-1] == {"server": ChildState.RUNNING, "c": ChildState.DOWN}
    assert {s.get("c") for s in seen} >= {ChildState.RUNNING, ChildState.RESTARTING, ChildState.DOWN}
    assert lines[-1] == "c: stays down until you restart `slipstream up`; the other parts keep running"
    supervisor.stopping.set()
    assert await supervisor.wait() == 0
    await supervisor.stop()


async def test_one_that_is_ended_is_started_again() -> None:
    """As the engine is when it hangs: ``end`` kills it, and it is still kept."""
    supervisor = Supervisor(Lines())
    child = supervisor.start(sh("c", "trap '' TERM; while :; do sleep 0.05; done", grace=0.1))
    await until(lambda: child.process is not None)
    await asyncio.wait_for(supervisor.end(child), 60)
    await until(lambda: child.starts == 2)
    await supervisor.stop()


async def test_a_stage_ends_side_by_side(tmp_path: Path) -> None:
    supervisor = Supervisor(Lines())
    slow = "trap 'sleep 1; exit 0' TERM; touch {0}/{1}; while :; do sleep 0.05; done"
    for n in range(4):
        supervisor.start(sh(f"w{n}", slow.format(tmp_path, n), stage="workers"))
    await until(lambda: len(list(tmp_path.iterdir())) == 4)
    began = time.monotonic()
    await asyncio.wait_for(supervisor.stop(), 60)
    assert time.monotonic() - began < 3
    assert [c.exit_code for c in supervisor.children] == [0] * 4


async def test_without_capture_it_writes_to_our_own_output(capfd: pytest.CaptureFixture[str]) -> None:
    supervisor = Supervisor(lines := Lines())
    child = supervisor.start(sh("c", "echo out; echo err >&2", capture=False, may_end=True))
    await until(lambda: child.exit_code is not None)
    await supervisor.stop()
    assert capfd.readouterr() == ("out\n", "err\n")
    assert lines == []


async def test_a_watch_ends_with_all() -> None:
    supervisor = Supervisor(Lines())
    ended = []

    async def watching() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(True)

    supervisor.watch(watching())
    await asyncio.sleep(0)
    await asyncio.wait_for(supervisor.stop(), 60)
    assert ended == [True]


async def test_one_that_dies_is_started_again(tmp_path: Path) -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    child = supervisor.start(
        sh("c", f"echo x >> {tmp_path}/n; [ $(wc -l < {tmp_path}/n) -ge 3 ] && exec sleep 600; exit 7")
    )
    await until(lambda: child.starts == 3)
    assert not child.gave_up
    await supervisor.stop()
    assert lines == [
        "c: ended with exit code 7; restarted in 0.01 s",
        "c: ended with exit code 7; restarted in 0.02 s",
    ]


async def test_one_that_keeps_dying_is_given_up_and_ends_all() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    other = supervisor.start(sh("other", "exec sleep 600"))
    child = supervisor.start(sh("c", "echo sorry; exit 3", max_failures=3))
    assert await asyncio.wait_for(supervisor.wait(), 60) == 1
    await asyncio.wait_for(supervisor.stop(), 60)
    assert (child.starts, child.gave_up) == (3, True)
    assert lines[-1] == "c: given up after 3 failed starts: it ended with exit code 3"
    assert other.process is not None
    assert not alive(other.process.pid)
    assert not other.gave_up


async def test_what_cannot_be_is_not_tried_again() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    child = supervisor.start(sh("c", "exit 2"))
    assert await asyncio.wait_for(supervisor.wait(), 60) == 1
    await supervisor.stop()
    assert child.starts == 1
    assert lines == ["c: given up after 1 failed start: it ended with exit code 2"]


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    child = supervisor.start(Child("c", [str(tmp_path / "none")]))
    assert await asyncio.wait_for(supervisor.wait(), 60) == 1
    await asyncio.wait_for(supervisor.stop(), 60)
    assert child.gave_up
    assert lines[0] == f"c: {tmp_path}/none can't be run: No such file or directory"


async def test_without_restart_it_ends_once() -> None:
    supervisor = Supervisor(Lines())
    child = supervisor.start(sh("c", "exit 7", restart=False))

    async def never() -> bool:
        return False

    assert not await asyncio.wait_for(supervisor.until(child, never, 600), 60)
    assert (child.starts, child.exit_code, child.gave_up) == (1, 7, False)
    await supervisor.stop()


async def test_until_it_is_ready(tmp_path: Path) -> None:
    supervisor = Supervisor(Lines())
    child = supervisor.start(sh("c", f"touch {tmp_path}/up; exec sleep 600"))

    async def ready() -> bool:
        return (tmp_path / "up").exists()

    async def never() -> bool:
        return False

    assert await supervisor.until(child, ready, 60)
    assert not await supervisor.until(child, never, 0.1)
    await supervisor.stop()
    assert not await supervisor.until(child, ready, 60)


async def test_the_last_one_started_ends_first(tmp_path: Path) -> None:
    supervisor = Supervisor(Lines())
    script = "trap 'echo {n} >> {f}; exit 0' TERM; touch {d}/{n}.up; while :; do sleep 0.05; done"
    for n in "abc":
        supervisor.start(sh(n, script.format(n=n, f=tmp_path / "ends", d=tmp_path)))
    await until(lambda: all((tmp_path / f"{n}.up").exists() for n in "abc"))
    await asyncio.wait_for(supervisor.stop(), 60)
    assert (tmp_path / "ends").read_text().split() == ["c", "b", "a"]


async def test_one_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    child = supervisor.start(sh("c", f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done", grace=0.2))
    await until((tmp_path / "up").exists)
    await asyncio.wait_for(supervisor.stop(), 60)
    assert child.exit_code == -signal.SIGKILL
    assert any("did not end within" in line for line in lines)


async def test_a_stop_while_it_is_just_being_started() -> None:
    for pause in (0, 0, 0.001, 0.003):
        supervisor = Supervisor(Lines())
        child = supervisor.start(sh("c", "exec sleep 600"))
        await asyncio.sleep(pause)
        await asyncio.wait_for(supervisor.stop(), 60)
        assert child.process is None or not alive(child.process.pid)


async def test_what_a_dead_child_left_is_ended_with_it(tmp_path: Path) -> None:
    """As when vLLM's server is killed and its engine core lives on, holding the pipe and the memory."""
    supervisor = Supervisor(Lines())
    child = supervisor.start(sh("c", f"sleep 600 & echo $! > {tmp_path}/pid; kill -9 $$", restart=False))
    await until(lambda: child.exit_code is not None)
    left = int((tmp_path / "pid").read_text())
    await until(lambda: not alive(left))
    await supervisor.stop()


async def test_an_orphan_that_holds_the_pipe_holds_nobody_up(tmp_path: Path) -> None:
    supervisor = Supervisor(Lines())
    orphan = f"import os,time; os.setsid(); open(r'{tmp_path}/pid.tmp','w').write(str(os.getpid())); os.rename(r'{tmp_path}/pid.tmp', r'{tmp_path}/pid'); time.sleep(600)"
    script = f'{sys.executable} -c "{orphan}" & while [ ! -e {tmp_path}/pid ]; do sleep 0.05; done; echo bye'
    child = supervisor.start(sh("c", script, may_end=True))
    try:
        await until(lambda: child.exit_code is not None)
        assert (child.exit_code, list(child.tail)) == (0, ["bye"])
        await asyncio.wait_for(supervisor.stop(), 60)
        assert alive(int((tmp_path / "pid").read_text()))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


async def test_a_very_long_line_does_not_stop_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_BYTES", 1024)
    supervisor = Supervisor(Lines())
    child = supervisor.start(sh("c", "head -c 100000 /dev/zero | tr '\\0' x; echo; printf '\\377\\n'; echo after"))
    await until(lambda: child.exit_code is not None)
    await supervisor.stop()
    assert child.tail[-1] == "after"
    assert child.tail[-2] == "�"


PROGRAM = """
import asyncio, sys
from slipstream.shared.processes.supervisor import Child, Supervisor

async def main():
    supervisor = Supervisor()
    supervisor.handle_signals()
    script = "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); print('up', flush=True); time.sleep(600)"
    supervisor.start(Child("one", [sys.executable, "-c", script]))
    supervisor.start(Child("two", ["/bin/sh", "-c", "sleep 600 & sleep 600 & echo up; wait"]))
    code = await supervisor.wait()
    await supervisor.stop()
    return code

sys.exit(asyncio.run(main()))
"""


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_the_whole_tree(tmp_path: Path, sig: signal.Signals) -> None:
    log = tmp_path / "log"
    with process([sys.executable, "-c", PROGRAM], log) as p:

        def tree() -> list[psutil.Process]:
            found = psutil.Process(p.pid).children(recursive=True)
            return found if len(found) >= 5 and log.read_text().count("| up") == 2 else []

        pids = [c.pid for c in wait_for(tree, said="all are up")]
        p.send_signal(sig)
        assert p.wait(60) == 0, log.read_text()
        wait_for(lambda: not any(alive(pid) for pid in pids), said="all are gone")


def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with process([sys.executable, "-c", PROGRAM], log) as p:
        wait_for(lambda: log.read_text().count("| up") == 2, said="all are up")
        pids = [c.pid for c in psutil.Process(p.pid).children()]
        p.kill()
        wait_for(lambda: not any(alive(pid) for pid in pids), said="children are gone")
        for pid in pids:  # a supervisor that is killed can't end its grandchildren
            reap_group(pid, signal.SIGKILL)
