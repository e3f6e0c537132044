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

from holdfast import AsyncRun, Diverged, NotNow, Run, RunWaiting, agent, step, tool

happened: list[str] = []


class Died(BaseException):
    """The process ends here."""


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
    (call_became_a_wait, 'read({"name":"a"})', "wait for signal 'go'"),
    (other_wait, "wait for signal 'go'", "wait for timer ''"),
    (other_signal, "wait for signal 'go'", "wait for signal 'stop'"),
    (ends_early, 'send({"to":"sam"})', "the end of the agent"),
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
    for way_out in ("restore the old code", "run.patched(", "hf.rerun('r')", "hf.fork"):
        assert way_out in said

    hf = home.open()
    assert hf.handle("r").status == "waiting"
    assert "diverged" in hf.get("r").waiting_for
    hf.signal("r", "go")
    assert hf.run(make(original), id="r") == ["a", "sam", "b", "kim"]  # the old code continues
    assert happened == [*before, "send kim"]


def test_a_new_failure_in_the_middle_of_recorded_history_is_a_divergence_too(home: Any) -> None:
    """The code never makes the recorded calls: it did not take the same path."""
    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")

    with pytest.raises(Diverged, match=r"recorded: +send\("):
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
        except BaseException:  # what is tested: code that swallows everything
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


def test_a_patch_at_the_end_of_the_log_changes_the_path_on_every_replay(home: Any) -> None:
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


def test_new_notes_between_the_calls_are_not_a_divergence(home: Any) -> None:
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


# ── branches that were added ─────────────────────────────────────────────────────────────────


@tool
async def post(to: str, idempotency_key: str = "") -> str:
    happened.append(f"post {to}")
    return to


@step
async def look(at: str) -> str:
    happened.append(f"look {at}")
    return at


def parallel(added: Callable[[AsyncRun], Any] | None = None) -> Any:
    """Posts at once and one after the other; what is added comes between the first two."""

    @agent(name="parallel")
    async def main(run: AsyncRun) -> Any:
        found = [await post("first")]
        if added is not None:
            await added(run)
        found.append(await post("second"))
        found += await asyncio.gather(post("x"), post("y"))
        await run.wait_for("go")
        return found

    return main


async def _two_looks(_: AsyncRun) -> None:
    await asyncio.gather(look("1"), look("2"))


async def _a_nested_look(_: AsyncRun) -> None:
    async def inner() -> None:
        await asyncio.gather(look("1"))

    await asyncio.gather(inner())


@pytest.mark.parametrize("added", [_two_looks, _a_nested_look])
def test_a_parallel_group_added_in_the_middle_stops_before_any_new_effect(
    home: Any, added: Any
) -> None:
    """And it does not rename the groups that follow, so what those did is not done again."""
    with pytest.raises(RunWaiting):
        home.open().run(parallel(), id="r")
    before = list(happened)

    with pytest.raises(Diverged) as stopped:
        home.open().run(parallel(added), id="r")

    assert happened == before
    assert ('post({"to":"second"})', 'look({"at":"1"})') == (
        stopped.value.recorded,
        stopped.value.attempted,
    )


def test_items_mapped_in_threads_that_were_added_stop_before_any_new_effect(home: Any) -> None:
    def mapping(first: list[str]) -> Any:
        def body(run: Run) -> Any:
            read("a")
            found = run.map(other, first) if first else []
            read("b")
            found += run.map(send, ["x", "y"])
            run.wait_for("go")
            return found

        return make(body)

    with pytest.raises(RunWaiting):
        home.open().run(mapping([]), id="r")
    before = list(happened)

    with pytest.raises(Diverged, match="recorded:  read"):
        home.open().run(mapping(["new"]), id="r")
    assert happened == before


def test_a_task_that_was_started_and_has_made_no_call_continues(home: Any) -> None:
    """It is recorded as started, so its first call is not an addition."""

    @agent(name="unjoined")
    async def main(run: AsyncRun) -> Any:
        gate = asyncio.Event()

        async def late() -> str:
            await gate.wait()
            return await look("late")

        task = asyncio.create_task(late())
        await post("early")
        gate.set()
        return [await task]

    home.crash(main, "r", at="before look")
    home.clock.advance(31)

    assert home.open().run(main, id="r") == ["late"]
    assert happened == ["post early", "look late"]


# ── accepting new steps ──────────────────────────────────────────────────────────────────────


def wait_added(run: Run) -> Any:
    found = [read("a")]
    run.ask("Really?")
    found += [send("sam"), read("b")]
    run.wait_for("go")
    return [*found, send("kim")]


def two_added(run: Run) -> Any:
    found = [other("1"), other("1"), read("a"), send("sam"), other("2"), read("b")]
    run.wait_for("go")
    return [*found, send("kim")]


@pytest.mark.parametrize(
    ("changed", "added", "result"),
    [
        (step_added, ["other new"], ["a", "new", "sam", "b", "kim"]),
        (two_added, ["other 1", "other 1", "other 2"], ["1", "1", "a", "sam", "2", "b", "kim"]),
    ],
)
def test_accepted_new_steps_are_made_once_and_what_is_recorded_stays(
    home: Any, changed: Any, added: list[str], result: list[str]
) -> None:
    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")
    before = list(happened)
    with pytest.raises(Diverged, match="accept_new_steps=True"):
        home.open().run(make(changed), id="r")

    with pytest.raises(RunWaiting, match="go"):
        home.open(make(changed)).resume("r", accept_new_steps=True, by="ann", why="checked")

    assert happened == [*before, *added]
    with pytest.raises(RunWaiting, match="go"):
        home.open().run(make(changed), id="r")  # another process finds them where they are
    hf = home.open(make(changed))
    assert hf.replay("r").diverged is None
    hf.signal("r", "go")
    assert hf.run(make(changed), id="r") == result
    assert happened == [*before, *added, "send kim"]
    assert hf.verify("r").ok
    said = [line.text for line in hf.get("r").lines if line.level == "accept"]
    assert ["new steps of the code were accepted by ann: checked"] == said


def test_a_crash_at_any_boundary_of_an_accepted_resume_repeats_nothing(home: Any) -> None:
    def tool_added(run: Run) -> Any:
        @tool
        def announce(text: str, idempotency_key: str = "") -> str:
            happened.append(f"announce {idempotency_key}")
            return text

        found = [read("a"), announce("hello"), send("sam"), read("b")]
        run.wait_for("go")
        return [*found, send("kim")]

    def crash_after(count: int) -> Callable[[str], None]:
        left = iter(range(count))

        def die(name: str) -> None:
            if next(left, None) is None:
                raise Died(name)

        return die

    killed = 0
    while True:
        run_id = f"run-{killed}"
        with pytest.raises(RunWaiting):
            home.open().run(make(original), id=run_id)
        happened.clear()
        hf = home.open(make(tool_added), boundary=crash_after(killed))
        try:
            hf.resume(run_id, accept_new_steps=True)
        except RunWaiting:
            break
        except Died:
            killed += 1
        home.clock.advance(31)
        with pytest.raises(RunWaiting):
            home.open(make(tool_added)).resume(run_id)
        hf = home.open(make(tool_added))
        hf.signal(run_id, "go")

        assert hf.run(make(tool_added), id=run_id) == ["a", "hello", "sam", "b", "kim"]
        assert len(set(happened)) == 2  # the key of the added call, however often it was tried
        assert happened.count("send kim") == 1
    assert killed > 5


def test_an_accepted_wait_waits_and_is_answered_where_it_was_added(home: Any) -> None:
    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")
    with pytest.raises(RunWaiting, match="Really"):
        home.open(make(wait_added)).resume("r", accept_new_steps=True)
    hf = home.open(make(wait_added))
    hf.answer("r", "yes")
    hf.signal("r", "go")

    assert hf.run(make(wait_added), id="r") == ["a", "sam", "b", "kim"]
    assert happened == ["read a", "send sam", "read b", "send kim"]


@pytest.mark.parametrize("added", [_two_looks, _a_nested_look])
def test_an_accepted_parallel_group_is_made_once(home: Any, added: Any) -> None:
    with pytest.raises(RunWaiting):
        home.open().run(parallel(), id="r")
    before = list(happened)

    with pytest.raises(RunWaiting, match="go"):
        home.open(parallel(added)).resume("r", accept_new_steps=True)
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(parallel(added), id="r") == ["first", "second", "x", "y"]
    assert sorted(happened[len(before) :]) == ["look 1", "look 2"][: len(happened) - len(before)]
    assert len(happened) > len(before)


def test_new_steps_are_accepted_a_second_time_among_those_accepted_before(home: Any) -> None:
    def more(run: Run) -> Any:
        found = [read("a"), send("ann"), other("new"), send("sam"), read("b")]
        run.wait_for("go")
        return [*found, send("kim")]

    def most(run: Run) -> Any:
        @step
        def third(name: str) -> str:
            return other.__wrapped__(name)

        found = [read("a"), third("3"), other("new"), send("sam"), read("b")]
        run.wait_for("go")
        return [*found, send("kim")]

    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")
    with pytest.raises(RunWaiting):
        home.open(make(step_added)).resume("r", accept_new_steps=True)
    with pytest.raises(Diverged):  # the first `send` of the log is another one
        home.open(make(more)).resume("r", accept_new_steps=True)
    with pytest.raises(RunWaiting, match="go"):
        home.open(make(most)).resume("r", accept_new_steps=True)
    assert happened == ["read a", "send sam", "read b", "other new", "other 3"]


@pytest.mark.parametrize(
    "changed",
    [step_removed, steps_reordered, arguments_changed, ends_early],
    ids=lambda x: x.__name__,
)
def test_accepting_new_steps_accepts_nothing_else(home: Any, changed: Any) -> None:
    """Recorded calls must still be asked for, in their order and with their arguments."""
    with pytest.raises(RunWaiting):
        home.open().run(make(original), id="r")
    before = list(happened)

    with pytest.raises(Diverged) as stopped:
        home.open(make(changed)).resume("r", accept_new_steps=True)

    assert happened == before
    assert "accept_new_steps" not in str(stopped.value)


def test_a_group_that_takes_the_place_of_a_recorded_one_does_not_repeat_it(home: Any) -> None:
    def grouped(*groups: list[str]) -> Any:
        @agent(name="grouped")
        async def main(run: AsyncRun) -> Any:
            for names in groups:
                calls = [look(n) if n.isdigit() else post(n) for n in names]
                await asyncio.gather(*calls)
            await run.wait_for("go")

        return main

    with pytest.raises(RunWaiting):
        home.open().run(grouped(["x", "y"]), id="r")

    with pytest.raises(Diverged):
        home.open(grouped(["1", "2"], ["x", "y"])).resume("r", accept_new_steps=True)
    assert sorted(x for x in happened if x.startswith("post")) == ["post x", "post y"]


def test_new_steps_are_not_accepted_of_a_run_that_has_ended(home: Any) -> None:
    hf = home.open(make(lambda _: read("a")))
    hf.run(make(lambda _: read("a")), id="r")
    before = list(hf.events("r"))

    with pytest.raises(NotNow, match="is completed"):
        hf.resume("r", accept_new_steps=True)
    assert before == list(hf.events("r"))


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
        capture_output=True,
        text=True,
        timeout=240,
        env={"PYTHONHASHSEED": str(seed), "PATH": ""},
    )
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


# ── in a child run ───────────────────────────────────────────────────────────────────────────


def families() -> dict[str, tuple[Any, Any, Any]]:
    """A parent, sync and async, with its child as it was and as it was changed to."""

    @agent(name="child")
    def child(run: Run) -> str:
        read("a")
        return str(run.wait_for("go"))

    @agent(name="child")
    def changed(run: Run) -> str:
        other("a")
        return str(run.wait_for("go"))

    @agent(name="child")
    async def child_async(run: AsyncRun) -> str:
        read("a")
        return str(await run.wait_for("go"))

    @agent(name="child")
    async def changed_async(run: AsyncRun) -> str:
        other("a")
        return str(await run.wait_for("go"))

    called: dict[str, Any] = {}

    @agent(name="parent")
    def parent(run: Run) -> str:
        return f"child: {called['child']()}"

    @agent(name="parent")
    async def parent_async(run: AsyncRun) -> str:
        return f"child: {await called['child']()}"

    return {
        "sync": (
            parent,
            lambda new: called.update(child=changed if new else child),
            (child, changed),
        ),
        "async": (
            parent_async,
            lambda new: called.update(child=changed_async if new else child_async),
            (child_async, changed_async),
        ),
    }


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_parent_waits_until_the_code_of_its_child_is_put_right(home: Any, how: str) -> None:
    """The child has not failed: it is waiting for its code, and so is its parent."""
    parent, use, (old, new) = families()[how]
    use(False)
    with pytest.raises(RunWaiting):
        home.open(parent, old).run(parent, id="p")
    hf = home.open(parent, new)
    use(True)
    hf.signal("p~1", "go", "gone")

    with pytest.raises(RunWaiting, match="child run p~1, which is waiting for its code") as waiting:
        hf.run(parent, id="p")
    assert [("child", "p~1", "code")] == [
        (x.kind, x.run_id, x.child[0].kind) for x in waiting.value.waits
    ]
    assert ("waiting", "waiting") == (hf.get("p").status, hf.get("p~1").status)
    assert hf.get("p~1").diverged is not None
    assert "hf.resume('p~1')" in waiting.value.how
    assert ["read a"] == happened

    use(False)
    again = home.open(parent, old)
    assert "gone" == again.resume("p~1")
    assert "child: gone" == again.run(parent, id="p")
    assert ["read a"] == happened


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_parent_that_is_resumed_with_the_right_code_resumes_its_child(
    home: Any, how: str
) -> None:
    parent, use, (old, new) = families()[how]
    use(False)
    with pytest.raises(RunWaiting):
        home.open(parent, old).run(parent, id="p")
    use(True)
    hf = home.open(parent, new)
    hf.signal("p~1", "go", "gone")
    with pytest.raises(RunWaiting):
        hf.run(parent, id="p")

    use(False)
    assert "child: gone" == home.open(parent, old).run(parent, id="p")
