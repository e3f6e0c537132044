"""Random agents under random faults: some batches with each change, many in the night.

Every day the same seeds are used; at night new ones, which are printed. `python -m fuzz --seed …` (in `tests/`)
makes the same choices again; see there.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.features import ALL
from fuzz.programs import SHAPES, family, generate, shown

TESTS = Path(__file__).parent.parent


def fuzz(folder: Path, *words: str, seconds: int) -> None:
    """A session of the fuzzer in a small process of its own: it forks much."""
    command = [sys.executable, "-m", "fuzz", "--save", str(folder / "found")]
    done = subprocess.run(
        [*command, *words], cwd=TESTS, text=True, capture_output=True, timeout=seconds
    )
    sys.stdout.write(done.stdout)
    found = sorted((folder / "found").rglob("f*.txt"))
    shown = "\n".join(path.read_text("utf-8")[:6000] for path in found[:3])
    assert 0 == done.returncode, f"{done.stdout}\n{done.stderr}\n{shown}"


@pytest.mark.timeout(900)
def test_random_agents_keep_every_promise_while_their_processes_are_killed(tmp_path: Path) -> None:
    fuzz(tmp_path, "--store", "sqlite", "--seed", "1", "--batches", "9", seconds=850)


@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_on_postgresql_they_do_so_while_connections_and_servers_are_killed_too(
    tmp_path: Path,
) -> None:
    fuzz(tmp_path, "--store", "postgres", "--seed", "1001", "--batches", "7", seconds=850)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_random_agents_keep_every_promise_for_twenty_thousand_kills(tmp_path: Path) -> None:
    seed = str(random.SystemRandom().randrange(10**6))
    fuzz(
        tmp_path, "--store", "both", "--seed", seed, "--kills", "20000", "--jobs", "2", seconds=7000
    )


def test_a_seed_makes_the_same_programs_everywhere() -> None:
    """So a failure can be repeated from its seed alone."""
    texts = [shown(generate(f"7:{n}", f"p{n}", ALL)) for n in range(50)]

    assert texts == [shown(generate(f"7:{n}", f"p{n}", ALL)) for n in range(50)]
    assert len(set(texts)) == 50


def test_programs_use_every_operation_and_every_shape() -> None:
    """What is never generated is never tested."""
    made = [generate(f"8:{n}", f"p{n}", ALL) for n in range(400)]
    words = {word for program in made for one in family(program) for word in _words(one["body"])}
    kinds = {one["kind"] for program in made for one in family(program)}

    assert {make.__name__ for make in SHAPES} <= {program["shape"] for program in made}
    assert {"sync", "async", "loop", "async_loop", "llm", "async_llm"} == kinds
    assert {
        "step",
        "slow",
        "keyed",
        "checked",
        "once",
        "tx",
        "undoable",
        "flaky",
        "failing",
        "random",
        "uuid",
        "now",
        "state",
        "patched",
        "checkpoint",
        "raise",
        "ask",
        "approve",
        "signal",
        "sleep",
        "wait_any",
        "loop",
        "if",
        "try",
        "child",
        "map",
        "gather",
        "group",
        "race",
        "timeout",
        "unlucky",
        "swallow",
        "limited",
        "queue",
        "completed",
        "within",
        "until",
        "shielded",
        "thread",
        "cleans",
        "raise_in",
        "clean_up",
        "leave",
        "notify",
        "hang",
        "endless",
        "stall",
    } <= words


def _words(body: object) -> set[str]:
    if not isinstance(body, list):
        return set()
    own = {body[0]} if body and isinstance(body[0], str) else set()
    return own.union(*(_words(part) for part in body))
