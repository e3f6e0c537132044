"""A lease whose owner was a process on this machine that is dead has ended: no one waits for its time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast, RunBusy
from holdfast.core.events import CallStarted, RunClaimed
from holdfast.store import process
from holdfast.store.process import has_died_here, worker_name
from support.dead_owners import mailing, open_store
from support.runs import of_kind
from support.waiting import Door

TESTS = Path(__file__).parent.parent


@contextlib.contextmanager
def owner(url: str, door: Door) -> Iterator[subprocess.Popen[str]]:
    """A process that executes run `r` and is inside its tool; it is ended in any case."""
    command = [sys.executable, "-m", "support.dead_owners", url, door.path]
    with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert "inside\n" == started.stdout.readline()
            yield started
        finally:
            started.kill()


@pytest.fixture
def killed(url: str, door: Door) -> None:
    """Run `r` was executed by a process that was killed."""
    with owner(url, door) as victim:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    door.open()


@pytest.mark.usefixtures("killed")
def test_after_a_kill_the_same_command_continues_at_once(url: str, door: Door) -> None:
    with open_store(url) as hf:
        assert "sent" == hf.run(mailing, id="r", door=door.path)
        assert 2 == len(of_kind(hf, "r", CallStarted))


@pytest.mark.usefixtures("killed")
def test_after_a_kill_resume_continues_at_once(url: str) -> None:
    with open_store(url) as hf:
        assert "sent" == hf.resume("r")


@pytest.mark.usefixtures("killed")
def test_after_a_kill_the_call_is_shown_in_doubt_and_can_be_settled_at_once(url: str) -> None:
    with open_store(url) as hf:
        state = hf.get("r")
        assert ("interrupted", "in_doubt") == (state.status, state.call(2).status)

        hf.resolve("r", done="settled")

        assert "settled" == hf.resume("r")


@pytest.mark.usefixtures("killed")
def test_a_worker_that_starts_after_a_kill_claims_the_run_at_once(url: str) -> None:
    with open_store(url) as hf:
        assert 1 == hf.worker().run(once=True)
        assert "completed" == hf.get("r").status


def test_a_zombie_is_dead(url: str, door: Door) -> None:
    """Its parent (here: the test) has not asked how it ended."""
    with owner(url, door) as victim:
        victim.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
        door.open()
        with open_store(url) as hf:
            assert "sent" == hf.run(mailing, id="r", door=door.path)


def test_a_frozen_process_keeps_its_lease(url: str, door: Door) -> None:
    with owner(url, door) as frozen, open_store(url) as hf:
        frozen.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, frozen.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(RunBusy):
            hf.run(mailing, id="r", door=door.path)
        assert 0 == hf.worker().run(once=True)

        door.open()
        frozen.send_signal(signal.SIGCONT)

        assert frozen.stdout is not None
        assert "done\n" == frozen.stdout.readline()
        assert [] == of_kind(hf, "r", RunClaimed)


@pytest.mark.usefixtures("killed")
def test_of_several_that_find_the_owner_dead_one_claims_the_run(url: str, door: Door) -> None:
    together = threading.Barrier(4)
    results: list[str] = []

    def take() -> None:
        with open_store(url) as hf:
            together.wait()
            try:
                results.append(hf.run(mailing, id="r", door=door.path))
            except RunBusy:
                results.append("busy")

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {"sent", "busy"} >= set(results)
    with open_store(url) as hf:
        assert 1 == len(of_kind(hf, "r", RunClaimed))
        assert 2 == len(of_kind(hf, "r", CallStarted))


def abandoned(hf: Holdfast, owner: str, door: Door) -> None:
    """Run `r` is owned by a process of this name."""
    hf.start(mailing, id="r", door=door.path)
    assert hf.store.claim("r", worker=owner, lease_us=3_600_000_000) is not None
    door.open()


def renamed(**parts: str) -> str:
    """The name of this process with something else in it."""
    name = dict(
        zip(
            ("host", "pid", "random", "place", "started"), worker_name().rsplit("-", 4), strict=True
        )
    )
    return "-".join({**name, **parts}.values())


def test_a_pid_that_was_reused_is_another_process(url: str, door: Door) -> None:
    with open_store(url) as hf:
        abandoned(hf, renamed(started="1"), door)

        assert "sent" == hf.run(mailing, id="r", door=door.path)


OTHERS: dict[str, Callable[[], str]] = {
    "another machine, boot or container": lambda: renamed(place="0" * 12, pid="999999999"),
    "a name of an earlier release": lambda: "pod-7-abcdefgh",
    "a name of another kind": lambda: "a-b-c-d-e",
    "alive": worker_name,
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_owner_that_is_not_known_to_be_dead_keeps_its_lease(
    url: str, door: Door, name: str
) -> None:
    with open_store(url) as hf:
        abandoned(hf, OTHERS[name](), door)

        with pytest.raises(RunBusy):
            hf.run(mailing, id="r", door=door.path)


def test_a_fork_has_a_name_of_its_own() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, worker_name().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as names:
        name = names.read()
    os.waitpid(pid, 0)

    assert has_died_here(name)
    assert not has_died_here(worker_name())


def test_without_its_own_proc_a_process_declares_no_owner_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example macOS, or a container with the /proc of its host."""
    dead = renamed(pid="999999999")
    assert has_died_here(dead)

    monkeypatch.setattr(process, "PROC", tmp_path)

    assert not has_died_here(dead)
    assert not has_died_here(worker_name())
