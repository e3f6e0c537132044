"""Code that changed since its run began: it stops before any new effect, with both sides named.

The corpus is the same short agent, changed in every way in which code changes.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncRun, Diverged, Run, RunWaiting, agent, step, tool

happened: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_happened_yet() -> None:
    happened.clear()


@step
def read(name: str) -> str:
    happened.append(f"read {name}")
    return name


@step
def other(name: str) -> str:
    happened.append(f"other {name}")
    return name


@tool
def send(to: str, idempotency_key: str = "") -> str:
    happened.append(f"send {to}")
    return to


def make(body: Callable[[Run], Any]) -> Any:
    """An agent of always the same name, with this body."""

    @agent(name="changing")
    def changing(run: Run) -> Any:
        return body(run)

    return changing


def original(run: Run) -> Any:
    found = [read("a"), send("sam"), read("b")]
    run.wait_for("go")
    return [*found, send("kim")]


def step_added(run: Run) -> Any:
    found = [read("a"), other("new"), send("sam"), read("b")]
    run.wait_for("go")
    return [*found, send("kim")]


def step_removed(run: Run) -> Any:
    found = [read("a"), read("b")]
    run.wait_for("go")
    return [*found, send("kim")]


def step_renamed(run: Run) -> Any:
    found = [other("a"), send("sam"), read("b")]
    run.wait_for("go")
    return [*found, send("kim")]


def steps_reordered(run: Run) -> Any:
    found = [send("sam"), read("a"), read("b")]
    run.wait_for("go")
    return [*found, send("kim")]


def arguments_changed(run: Run) -> Any:
    found = [read("a"), send("mallory"), read("b")]
    run.wait_for("go")
    return [*found, send("kim")]


def wait_became_a_call(run: Run) -> Any:
    return [read("a"), send("sam"), read("b"), send("kim")]


def call_became_a_wait(run: Run) -> Any:
    run.wait_for("go")
    return [read("a"), send("sam"), read("b"), send("kim")]


def other_wait(run: Run) -> Any:
    found = [read("a"), send("sam"), read("b")]
    run.sleep(10**6)
    return [*found, send("kim")]


def other_signal(run: Run) -> Any:
    found = [read("a"), send("sam"), read("b")]
    run.wait_for("stop")
    return [*found, send("kim")]


def ends_early(run: Run) -> Any:
    return [read("a")]


def fails_early(run: Run) -> Any:
    read("a")
    raise ValueError("a new bug")


CORPUS: list[tuple[Callable[[Run], Any], str, str]] = [
    (step_added, 'send({"to":"sam"})', 'other({"name":"new"})'),
    (step_removed, 'send({"to":"sam"})', 'read({"name":"b"})'),
    (step_renamed, 'read({"name":"a"})', 'other({"name":"a"})'),
    (steps_reordered, 'read({"name":"a"})', 'send({"to":"sam"})'),
    (arguments_changed, 'send({"to":"sam"})', 'send({"to":"mallory"})'),
    (wait_became_a_call, "wait for signal 'go'", 'send({"to":"kim"})'),
    (call_became_a_wait, "a call of read", "wait for signal 'go'"),
    (other_wait, "wait for signal 'go'", "wait for timer ''"),
    (other_signal, "wait for signal 'go'", "wait for signal 'stop'"),
    (ends_early, "a call of send", "the end of the agent"),
]


@pytest.mark.parametrize(
    ("changed", "recorded", "attempted"), CORPUS, ids=lambda x: getattr(x, "__name__", "")
)
def test_changed_code_stops_before_any_new_effect_with_both_sides_named(
    home: Any, changed: Any, recorded: str, attempted: str
) -> None:
    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")
    before = list(happened)

    with pytest.raises(Diverged) as stopped:
        home.open().run(make(changed), id="r")

    assert happened == before
    assert (stopped.value.recorded, stopped.value.attempted) == (recorded, attempted)
    said = str(stopped.value)
    assert recorded in said
    assert attempted in said
    for way_out in ("put the old code back", "run.patched(", "hf.rerun('r')", "hf.fork"):
        assert way_out in said

    hf = home.open()
    assert hf.handle("r").status == "waiting"
    assert "diverged" in hf.get("r").waiting_for
    hf.signal("r", "go")
    assert hf.run(make(original), id="r") == ["a", "sam", "b", "kim"]  # the old code goes on
    assert happened == [*before, "send kim"]


def test_a_new_failure_in_the_middle_of_recorded_history_is_a_divergence_too(home: Any) -> None:
    """The code never asked for what the log holds: it did not take the same way."""
    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")

    with pytest.raises(Diverged, match="a call of send"):
        home.open().run(make(fails_early), id="r")
    hf = home.open()
    hf.signal("r", "go")
    assert hf.run(make(original), id="r") == ["a", "sam", "b", "kim"]


def test_neither_except_exception_nor_a_bare_except_can_swallow_it(home: Any) -> None:
    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")
    before = list(happened)

    def swallows(run: Run) -> Any:
        for attempt in range(3):
            try:
                send(f"evil {attempt}")
            except Exception:
                pass
            except:  # noqa: E722
                pass
            run_again = True
        try:
            run.state.evil = run_again
        except BaseException:
            pass
        return "finished"

    with pytest.raises(Diverged):
        home.open().run(make(swallows), id="r")
    assert happened == before
    assert home.open().get("r").state == {}
    assert home.open().handle("r").status == "waiting"


def test_except_exception_lets_it_pass(home: Any) -> None:
    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")
    passed: list[str] = []

    def catches(run: Run) -> Any:
        try:
            other("x")
        except Exception:
            passed.append("caught")
        passed.append("went on")

    with pytest.raises(Diverged):
        home.open().run(make(catches), id="r")
    assert passed == []


def test_it_cannot_be_swallowed_in_a_branch_either(home: Any) -> None:
    def branches(names: list[str]) -> Any:
        @agent(name="branches")
        async def main(run: AsyncRun) -> Any:
            async def one(name: str) -> str:
                return read(name)

            got = await asyncio.gather(*(one(n) for n in names), return_exceptions=True)
            await run.wait_for("go")
            return [str(x) for x in got]

        return main

    with pytest.raises(RunWaiting):
        home.open().run(branches(["a", "b"]), id="r")
    before = list(happened)

    with pytest.raises(Diverged, match="of branch 0-2"):
        home.open().run(branches(["a", "x"]), id="r")
    assert happened == before
    with pytest.raises(Diverged):  # a branch that is no more
        home.open().run(branches(["a"]), id="r")
    assert happened == before


def test_patched_lets_old_runs_go_the_old_way_and_new_runs_the_new(home: Any) -> None:
    def patched(run: Run) -> Any:
        found = [read("a")]
        if run.patched("greet first"):
            found.append(other("new"))
        found += [send("sam"), read("b")]
        run.wait_for("go")
        return [*found, send("kim")]

    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="old")
    with pytest.raises(RunWaiting):
        home.open().run(make(patched), id="new")
    hf = home.open()
    hf.signal("old", "go")
    hf.signal("new", "go")

    assert hf.run(make(patched), id="old") == ["a", "sam", "b", "kim"]
    assert hf.run(make(patched), id="new") == ["a", "new", "sam", "b", "kim"]


def test_patched_at_the_end_of_the_log_goes_the_new_way_and_stays_there(home: Any) -> None:
    def patched(run: Run) -> Any:
        found = [read("a"), send("sam"), read("b")]
        run.wait_for("go")
        if run.patched("ask again"):
            other("late")
            run.wait_for("really")
        return [*found, send("kim")]

    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")
    hf = home.open()
    hf.signal("r", "go")
    for _ in range(2):
        with pytest.raises(RunWaiting, match="really"):
            home.open().run(make(patched), id="r")
    hf.signal("r", "really")

    assert home.open().run(make(patched), id="r") == ["a", "sam", "b", "kim"]
    assert happened.count("other late") == 1


def test_new_notes_between_the_calls_are_no_divergence(home: Any) -> None:
    """State, stages, log lines: what is only noted may be changed freely."""

    def noting(run: Run) -> Any:
        run.log("a new line")
        found = [read("a"), send("sam")]
        run.state.note = "new"
        found.append(read("b"))
        run.wait_for("go")
        return [*found, send("kim")]

    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(make(noting), id="r") == ["a", "sam", "b", "kim"]
    assert hf.get("r").state == {"note": "new"}


def test_new_steps_at_the_end_are_just_new(home: Any) -> None:
    def longer(run: Run) -> Any:
        found = [read("a"), send("sam"), read("b")]
        run.wait_for("go")
        return [*found, other("more"), send("kim")]

    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(make(longer), id="r") == ["a", "sam", "b", "more", "kim"]


def test_rerun_accepts_the_new_code(home: Any) -> None:
    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")
    changed = make(lambda run: other("all new"))
    with pytest.raises(Diverged):
        home.open().run(changed, id="r")

    assert home.open(changed).rerun("r") == "all new"


def test_an_argument_that_was_too_big_to_keep_is_named_by_its_digest(home: Any) -> None:
    @step
    def big(text: str) -> int:
        return len(text)

    def made(size: int) -> Any:
        def body(run: Run) -> None:
            big("x" * size)
            run.wait_for("go")

        return make(body)

    with pytest.raises(RunWaiting):
        home.open().run(made(10_000), id="r")
    with pytest.raises(Diverged, match="arguments with digest"):
        home.open().run(made(10_001), id="r")


PROGRAM = textwrap.dedent(
    """
    import sys
    from holdfast import Holdfast, Run, RunWaiting, agent, step

    @step
    def visit(names: set[str], one: str) -> list[str]:
        return sorted(names)

    @agent
    def main(run: Run, careful: bool) -> list[str]:
        names = {"ann", "bob", "cyd", "dan", "eve", "fay", "gus", "hal"}
        order = sorted(names) if careful else names
        seen = [visit(names, name)[0] for name in order]
        run.wait_for("go")
        return seen

    with Holdfast(sys.argv[1]) as hf:
        try:
            hf.run(main, id=sys.argv[2], careful=sys.argv[2] == "careful")
        except RunWaiting:
            print("waiting")
        except Exception as error:
            print(type(error).__name__, "|", error.recorded, "|", error.attempted)
    """
)


def run_with_hash_seed(path: Path, run_id: str, seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), run_id],
        capture_output=True, text=True, timeout=60, env={"PYTHONHASHSEED": str(seed), "PATH": ""},
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.stdout.strip()


def test_another_hash_seed_changes_nothing_for_values_and_is_found_where_code_depends_on_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "h.db"
    for seed in (1, 2, 3):
        assert run_with_hash_seed(path, "careful", seed) == "waiting"
    first = run_with_hash_seed(path, "careless", 1)
    assert first == "waiting"
    others = [run_with_hash_seed(path, "careless", seed) for seed in (2, 3)]
    assert any(said.startswith("Diverged | visit(") for said in others)


def test_a_key_of_ones_own_that_changed_is_a_divergence_and_nothing_is_sent_again(
    home: Any,
) -> None:
    keys = iter(["first", "second"])

    def keyed(_: Run) -> Any:
        return send("sam", idempotency_key=next(keys))

    home.crash(make(keyed), "r", at="after send")
    home.clock.advance(31)

    with pytest.raises(Diverged) as stopped:
        home.open().run(make(keyed), id="r")

    assert ["send sam"] == happened
    assert "'first'" in stopped.value.recorded
    assert "'second'" in stopped.value.attempted
