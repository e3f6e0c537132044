"""A laptop that sleeps: its processes stop, and wake up when hours have passed (FAULTS 92)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import RunBusy
from holdfast.core.events import RunClaimed
from holdfast.store.process import worker_name
from support.runs import of_kind
from support.suspended import Machine
from support.suspended_agent import LEASE_SECONDS, open_store, shopping
from support.waiting import Door

TESTS = Path(__file__).parent.parent
LUNCH, NIGHT = LEASE_SECONDS // 2, LEASE_SECONDS * 8


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "slept")


@pytest.fixture
def paid(tmp_path: Path) -> Path:
    """Where each payment leaves a line."""
    file = tmp_path / "paid"
    file.touch()
    return file


@pytest.fixture
def owner(url: str, door: Door, paid: Path, machine: Machine) -> Iterator[subprocess.Popen[str]]:
    """A process that executes run `r` and has been stopped inside its first call."""
    words = [
        sys.executable,
        "-m",
        "support.suspended",
        url,
        door.path,
        str(paid),
        str(machine.file),
    ]
    with subprocess.Popen(words, cwd=TESTS, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert "inside\n" == said(started)
            started.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, started.pid, os.WSTOPPED | os.WNOWAIT)
            yield started
        finally:
            started.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def wake(process: subprocess.Popen[str], door: Door) -> str:
    """Let the process continue to its end; what it says then."""
    door.open()
    process.send_signal(signal.SIGCONT)
    return said(process)


def test_after_a_sleep_shorter_than_its_lease_the_owner_continues(
    url: str, door: Door, paid: Path, machine: Machine, owner: subprocess.Popen[str]
) -> None:
    """Another process that wakes up before it must not take the run: its owner is alive."""
    machine.sleep(LUNCH)
    with open_store(url, machine) as hf:
        with pytest.raises(RunBusy):
            hf.run(shopping, id="r", door=door.path, paid=str(paid))
        assert 0 == hf.worker().run(once=True)

        assert "paid\n" == wake(owner, door)
        assert [] == of_kind(hf, "r", RunClaimed)
    assert "a book\n" == paid.read_text()


def test_after_a_sleep_longer_than_its_lease_the_owner_starts_no_effect(
    url: str, door: Door, paid: Path, machine: Machine, owner: subprocess.Popen[str]
) -> None:
    """By the monotonic clock no time has passed: it must not go by that. The same command continues the run."""
    machine.sleep(NIGHT)

    assert "lost\n" == wake(owner, door)
    assert "" == paid.read_text()

    with open_store(url, machine) as hf:
        assert "paid" == hf.run(shopping, id="r", door=door.path, paid=str(paid))
    assert "a book\n" == paid.read_text()


def test_after_a_sleep_longer_than_its_lease_the_run_can_be_claimed_and_its_owner_is_fenced(
    url: str, door: Door, paid: Path, machine: Machine, owner: subprocess.Popen[str]
) -> None:
    """Whichever wakes up first: nothing is paid twice."""
    machine.sleep(NIGHT)
    with open_store(url, machine) as hf:
        claimed = hf.store.claim("r", worker=worker_name(), lease_us=LEASE_SECONDS * 1_000_000)
        assert claimed is not None

        assert "lost\n" == wake(owner, door)
        assert "" == paid.read_text()

        hf.store.release("r", claimed.epoch)
        assert "paid" == hf.run(shopping, id="r", door=door.path, paid=str(paid))
    assert "a book\n" == paid.read_text()


@pytest.mark.parametrize("seconds", [LUNCH, NIGHT])
def test_an_owner_that_died_while_the_machine_slept_has_lost_its_lease(
    url: str, door: Door, paid: Path, machine: Machine, owner: subprocess.Popen[str], seconds: int
) -> None:
    """However long it slept: the same command continues at once."""
    machine.sleep(seconds)
    owner.kill()
    owner.wait()
    door.open()
    with open_store(url, machine) as hf:
        assert "paid" == hf.run(shopping, id="r", door=door.path, paid=str(paid))
    assert "a book\n" == paid.read_text()


NAMESPACE = ("unshare", "--time", "--boottime", str(NIGHT))
"""A time namespace: inside, the machine has been up for so much longer, and every process is older."""


def test_a_process_that_counts_time_since_boot_otherwise_is_not_judged_by_its_start(
    url: str, door: Door, paid: Path, machine: Machine, owner: subprocess.Popen[str]
) -> None:
    """There the owner's start time looks like that of another process with its pid; it is alive."""
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("time namespaces need root and `unshare`")
    words = [
        sys.executable,
        "-m",
        "support.suspended",
        url,
        door.path,
        str(paid),
        str(machine.file),
    ]
    done = subprocess.run(
        [*NAMESPACE, *words], cwd=TESTS, capture_output=True, text=True, check=False
    )

    assert ("", True) == (done.stdout, "RunBusy" in done.stderr), done.stderr
