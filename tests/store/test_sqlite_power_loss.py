"""What was acknowledged survives a power cut at any moment (FAULTS 21, 25; invariants 1, 2, 10).

Each state of the disk that a power cut may leave is rebuilt from a trace of system calls, opened as
a fresh process would, and compared with the acknowledgements that were out by then. The same search
over a store that syncs less must find losses, or it would prove nothing.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from support import workload
from support.powerloss import STRACE, Crash, Op, Process, crashes, record
from support.workload import examine, folder_in_memory, read_acks

pytestmark = pytest.mark.skipif(STRACE is None, reason="strace is not installed")

SEED = 20_240_229
STATES_MIN = 1800


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """One folder for all traces and states."""
    with folder_in_memory() as folder:
        yield folder


def trace(memory: Path, name: str, processes: Iterable[tuple[list[str], str]]) -> list[Op]:
    """Run workloads over one store, one after the other, and record what reached the disk."""
    folder, acks = memory / name, memory / f"{name}-acks"
    folder.mkdir()
    commands = [
        Process(workload.command(folder / "a.db", acks, *options), inject)
        for options, inject in processes
    ]
    return record(
        folder, acks, commands, trace=memory / f"{name}-trace", env=workload.environment()
    )


def two_processes(synchronous: str) -> list[tuple[list[str], str]]:
    """The first closes its store, which ends its log; small logs are copied back now and then."""
    options = ["--synchronous", synchronous, "--autocheckpoint", "50"]
    return [
        ([*options, "--steps", "16"], ""),
        ([*options, "--steps", "10", "--first", "16", "--die"], ""),
    ]


@pytest.fixture(scope="module")
def safe_trace(memory: Path) -> list[Op]:
    return trace(memory, "full", two_processes("FULL"))


@pytest.fixture(scope="module")
def unsafe_trace(memory: Path) -> list[Op]:
    return trace(memory, "normal", two_processes("NORMAL"))


def verdict(crash: Crash, folder: Path, processes: int = 1) -> str:
    """What is wrong with the store after this crash, in a few words; empty if nothing is.

    Each process that died may have left one append that was committed and never acknowledged.
    """
    crash.put(folder)
    try:
        outcome = examine(folder / "a.db", read_acks(crash.acks))
    except HoldfastError as error:
        return f"{crash}: does not open: {error}"
    if outcome.damaged:
        return f"{crash}: damaged: {outcome.damaged[0]}"
    if outcome.lost:
        return f"{crash}: lost {len(outcome.lost)} acked, first {outcome.lost[0]}"
    if outcome.unacked_appends > processes:
        return f"{crash}: {outcome.unacked_appends} appends that nobody acknowledged"
    return ""


def wrong(states: Iterable[Crash], folder: Path, processes: int = 1) -> tuple[int, list[str]]:
    """How many states were opened, and what is wrong with which."""
    count, verdicts = 0, []
    for count, crash in enumerate(states, 1):  # noqa: B007 - the count is the result
        if found := verdict(crash, folder, processes):
            verdicts.append(found)
    return count, verdicts


def test_no_acked_event_is_lost_when_power_fails(safe_trace: list[Op], memory: Path) -> None:
    """Full durability: every state that differs of up to four after every call, and not one loss."""
    states, verdicts = wrong(crashes(safe_trace, seed=SEED), memory / "state")
    print(f"{states} states of {len(safe_trace)} calls, seed {SEED}")

    assert [] == verdicts
    assert states >= STATES_MIN


def test_the_same_search_finds_losses_when_commits_are_not_synced(
    unsafe_trace: list[Op], memory: Path
) -> None:
    """`synchronous="NORMAL"` loses acknowledged events, and this test sees it: it can fail."""
    states, verdicts = wrong(crashes(unsafe_trace, seed=SEED, every=7), memory / "state")
    losses = [found for found in verdicts if "lost" in found]
    print(f"{len(losses)} of {states} states lose acknowledged events, seed {SEED}")

    assert losses
    assert losses == verdicts  # it loses the newest, it damages nothing


def test_a_failed_sync_of_an_earlier_process_loses_nothing_of_a_later_one(memory: Path) -> None:
    """FAULTS 23: what the kernel dropped stays dropped, and must not lie below what is acked next."""
    after_failure = [
        (["--steps", "12", "--die"], "fdatasync:error=EIO:when=14"),
        (["--steps", "6", "--first", "16", "--die"], ""),
    ]
    ops = trace(memory, "failed", after_failure)
    failed = next(i for i, op in enumerate(ops) if op.failed)
    assert "a.db-wal" == ops[failed].name
    after = crashes(ops, seed=SEED, first=failed)
    states, verdicts = wrong(after, memory / "state", processes=2)

    assert [] == verdicts
    assert states > 100


def test_a_failed_sync_would_lose_events_if_the_log_were_not_settled_at_open(memory: Path) -> None:
    """The test above can fail: without the checkpoint at open, later acknowledged events are lost."""
    after_failure = [
        (["--steps", "12", "--die"], "fdatasync:error=EIO:when=14"),
        (["--steps", "6", "--first", "16", "--die", "--unsettled"], ""),
    ]
    ops = trace(memory, "unsettled", after_failure)
    failed = next(i for i, op in enumerate(ops) if op.failed)
    _, verdicts = wrong(crashes(ops, seed=SEED, first=failed, variants=["none"]), memory / "state")

    assert any("lost" in found for found in verdicts)


@pytest.fixture(scope="module")
def long_trace(memory: Path) -> list[Op]:
    options = ["--autocheckpoint", "120"]
    return trace(
        memory,
        "long",
        [([*options, "--steps", "24", "--first", str(first)], "") for first in range(0, 96, 24)],
    )


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_no_acked_event_is_lost_when_power_fails_in_a_longer_life(
    long_trace: list[Op], memory: Path, seed: int
) -> None:
    """Four processes one after the other, every call, with other halves for each seed."""
    states, verdicts = wrong(crashes(long_trace, seed=seed), memory / "state")
    print(f"{states} states of {len(long_trace)} calls, seed {seed}")

    assert [] == verdicts
    assert states >= 5000
