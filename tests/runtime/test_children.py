"""A parent's policy holds for its child runs: approval, redaction, deadline, budget and cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import (
    AsyncHoldfast,
    AsyncRun,
    Budget,
    BudgetExceeded,
    CallFailed,
    DeadlineExceeded,
    InvalidInput,
    LLMAgent,
    Run,
    RunCancelled,
    RunWaiting,
    agent,
    step,
    tool,
)
from holdfast.core.events import Usage
from holdfast.core.policy import Policy
from holdfast.testing import ScriptedModel, call
from support.places import Place
from support.runs import waits
from support.waiting import PATIENCE_SECONDS, eventually


class World:
    """Agents `parent` and `child`, and what the child's tool did."""

    def __init__(self, *, of_parent: Any = None, of_child: Any = None, waits: bool = False) -> None:
        self.sent: list[str] = []
        self.on_send: Callable[[], object] = lambda: None

        @tool
        def send(to: str) -> str:
            self.sent.append(to)
            self.on_send()
            return f"sent to {to}"

        @agent(**(of_child or {}))
        def child(run: Run, to: str) -> str:
            if waits:
                run.wait_for("go")
            return [send(f"{to}{n}") for n in range(3)][-1]

        @agent(**(of_parent or {}))
        def parent(run: Run, to: str = "sam") -> str:
            return child(to)

        self.send, self.child, self.parent = send, child, parent


# ── approval and redaction ───────────────────────────────────────────────────────────────────


def test_a_child_needs_the_approval_that_its_parent_requires(place: Place) -> None:
    world = World(of_parent={"approve": ("external_action",)})
    hf = place.open(world.parent, world.child)

    waits(hf, world.parent, "p")

    assert world.sent == []
    assert [w.name for w in hf.get("p~1").waits] == ["send"]


def test_the_required_approval_holds_when_the_child_is_resumed_by_its_id_elsewhere(
    place: Place,
) -> None:
    world = World(of_parent={"approve": ("external_action",)}, waits=True)
    waits(place.open(world.parent, world.child), world.parent, "p")
    there = place.open(world.child)  # another process, which does not know the parent
    there.signal("p~1", "go")

    with pytest.raises(RunWaiting, match="approval of send"):
        there.resume("p~1")

    assert world.sent == []


def test_the_required_approval_reaches_grandchildren(place: Place) -> None:
    world = World()

    @agent
    def middle(run: Run) -> str:
        return world.child("sam")

    @agent(approve=("external_action",), approval_ttl=60)
    def top(run: Run) -> str:
        return middle()

    hf = place.open(top, middle, world.child)
    waits(hf, top, "p")

    assert world.sent == []
    (asked,) = hf.get("p~1~1").waits
    assert asked.until is not None and asked.until - asked.since == 60_000_000


def test_a_child_cannot_release_its_own_children_from_what_its_parent_requires(
    place: Place,
) -> None:
    world = World()

    @agent(exempt=("approve",))
    def middle(run: Run) -> str:
        return world.child("sam")

    @agent(approve=("external_action",))
    def top(run: Run) -> str:
        return middle()

    waits(place.open(top, middle, world.child), top, "p")

    assert world.sent == []


def test_an_exempt_parent_does_not_pass_its_own_approval_on(place: Place) -> None:
    world = World(of_parent={"approve": ("external_action",), "exempt": ("approve",)})

    assert place.open().run(world.parent, id="p") == "sent to sam2"


def test_exempt_takes_only_what_can_be_exempted() -> None:
    with pytest.raises(InvalidInput, match="exempt takes approve, redact, not 'deadline'"):

        @agent(exempt=("deadline",))
        def main(run: Run) -> None: ...


def test_a_fork_of_a_child_keeps_what_was_required(place: Place) -> None:
    world = World(of_parent={"approve": ("external_action",)})
    hf = place.open(world.parent, world.child)
    waits(hf, world.parent, "p")
    hf.approve("p~1")
    hf.worker().run(once=True)  # the first call is done, the second asks
    assert world.sent == ["sam0"]

    fork = hf.fork("p~1", 1, id="fork")
    with pytest.raises(RunWaiting, match="approval of send"):
        hf.resume(fork.id)

    assert world.sent == ["sam0"]


def test_a_model_cannot_avoid_an_approval_through_a_helper_agent(place: Place) -> None:
    """FAULTS 127."""
    sent: list[str] = []

    @tool
    def send(to: str) -> str:
        sent.append(to)
        return "sent"

    helper = LLMAgent("helper", model=ScriptedModel(call("send", to="sam"), "done"), tools=[send])
    main = LLMAgent(
        "main",
        model=ScriptedModel(call("helper", goal="send it"), "done"),
        tools=[send, helper],
        approve=("external_action",),
    )
    hf = place.open(main, helper)
    waits(hf, main, "p", goal="send it to sam")
    assert sent == []
    (asking,) = [row.id for row in hf.runs(parent="p")]
    hf.reject(asking, by="ann")
    hf.worker().run(once=True)

    assert hf.run(main, id="p", goal="send it to sam") == "done"
    assert sent == []


def test_what_an_agent_redacts_is_in_no_log_of_its_children(place: Place) -> None:
    seen: list[str] = []

    @tool
    def log_in(token: str) -> str:
        seen.append(token)
        raise ValueError(f"no entry with {token}")

    @agent
    def child(run: Run) -> str:
        try:
            return log_in(token="hunter2-hunter2")
        except CallFailed as failed:
            return failed.message

    @agent(redact=("token",))
    def parent(run: Run) -> str:
        return child()

    hf = place.open(parent, child)

    assert "hunter2" not in hf.run(parent, id="p")
    assert seen == ["hunter2-hunter2"]
    logs = b"".join(r.data for run_id in ("p", "p~1") for r, _ in hf.events(run_id))
    assert b"hunter2" not in logs
    assert hf.replay("p~1").diverged is None


# ── cancellation ─────────────────────────────────────────────────────────────────────────────


def test_no_call_of_a_child_begins_after_its_parent_was_cancelled(place: Place) -> None:
    """FAULTS 126: from another process, while the child executes in its parent's call."""
    world = World()
    hf, elsewhere = place.open(world.parent, world.child), place.open()
    world.on_send = lambda: elsewhere.cancel("p", by="ann", why="too expensive")

    with pytest.raises(RunCancelled, match="by ann: too expensive"):
        hf.run(world.parent, id="p")

    assert world.sent == ["sam0"]
    with pytest.raises(RunCancelled, match="by ann: too expensive"):
        hf.result("p~1")


def test_a_suspended_child_ends_with_its_cancelled_parent(place: Place) -> None:
    world = World(waits=True)
    hf = place.open(world.parent, world.child)
    waits(hf, world.parent, "p")
    hf.signal("p~1", "go")

    hf.cancel("p", why="enough")
    with pytest.raises(RunCancelled, match="enough"):
        hf.run(world.parent, id="p")

    assert world.sent == []
    assert [hf.handle(x).status for x in ("p", "p~1")] == ["cancelled", "cancelled"]


def test_a_suspended_child_that_a_worker_resumes_first_ends_too(place: Place) -> None:
    world = World(waits=True)
    waits(place.open(world.parent, world.child), world.parent, "p")
    there = place.open(world.child)
    there.signal("p~1", "go")
    there.cancel("p", why="enough")

    there.worker().run(once=True)

    assert world.sent == []
    assert there.handle("p~1").status == "cancelled"


def test_grandchildren_are_cancelled_too(place: Place) -> None:
    world = World(waits=True)

    @agent
    def top(run: Run) -> str:
        return world.parent()

    hf = place.open(top, world.parent, world.child)
    waits(hf, top, "p")
    hf.cancel("p")
    hf.worker().run(once=True)

    assert {row.status for row in hf.runs()} == {"cancelled"}
    assert len(hf.runs()) == 3


def test_a_child_created_while_its_parent_is_being_cancelled_begins_no_call(place: Place) -> None:
    """The cancellation has listed the children before this one exists, so the child checks it."""
    world = World()
    hf, elsewhere = place.open(world.parent, world.child), place.open()
    create = hf.store.create

    def cancel_first(new: Any, *args: Any, **kwargs: Any) -> Any:
        if new.run.parent:
            elsewhere.cancel("p", why="just now")
        return create(new, *args, **kwargs)

    hf.store.create = cancel_first  # type: ignore[method-assign]

    with pytest.raises(RunCancelled, match="just now"):
        hf.run(world.parent, id="p")

    assert world.sent == []
    assert hf.handle("p~1").status == "cancelled"


def test_a_child_whose_creator_died_before_it_looked_begins_no_call(place: Place) -> None:
    """A worker that claims the child later finds the cancellation in its parent's log."""
    world = World()
    hf, elsewhere = place.open(world.parent, world.child), place.open(world.child)
    create = hf.store.create

    class Died(BaseException):
        pass

    def cancel_create_and_die(new: Any, *args: Any, **kwargs: Any) -> Any:
        if not new.run.parent:
            return create(new, *args, **kwargs)
        elsewhere.cancel("p")
        create(new, *args, **kwargs).wait()
        raise Died

    hf.store.create = cancel_create_and_die  # type: ignore[method-assign]
    with pytest.raises(Died):
        hf.run(world.parent, id="p")
    place.clock.advance(60)

    elsewhere.worker().run(once=True)

    assert world.sent == []
    assert elsewhere.handle("p~1").status == "cancelled"


@pytest.mark.parametrize("child_is_async", [True, False])
def test_an_async_parent_cancelled_while_its_child_awaits_ends_with_it(
    place: Place, child_is_async: bool
) -> None:
    entered, leave = threading.Event(), threading.Event()
    sent: list[int] = []

    @tool
    async def wait_there() -> None:
        entered.set()
        await asyncio.Event().wait()

    @tool
    def block_there() -> None:
        entered.set()
        assert leave.wait(PATIENCE_SECONDS)

    @tool
    def send() -> None:
        sent.append(1)

    @agent(name="child")
    async def child_async(run: AsyncRun) -> None:
        await wait_there()
        send()

    @agent(name="child")
    def child_sync(run: Run) -> None:
        block_there()
        send()

    @agent
    async def parent(run: AsyncRun) -> None:
        if child_is_async:
            await child_async()
        else:
            await asyncio.to_thread(child_sync)

    hf = place.open(parent, child_async if child_is_async else child_sync)

    async def main() -> None:
        app = AsyncHoldfast(hf.store, agents=(parent,))
        try:
            running = asyncio.ensure_future(app.run(parent, id="p"))
            await asyncio.to_thread(entered.wait, PATIENCE_SECONDS)
            await app.cancel("p", why="enough")
            leave.set()
            with pytest.raises(RunCancelled, match="enough"):
                await running
        finally:
            app.sync.engine.close()

    asyncio.run(main())

    assert sent == []
    eventually(lambda: hf.handle("p~1").status == "cancelled", "the end of the child")


# ── deadline ─────────────────────────────────────────────────────────────────────────────────


def test_a_childs_deadline_is_not_later_than_its_parents(place: Place) -> None:
    world = World(of_parent={"deadline": 10}, of_child={"deadline": 60})
    hf = place.open(world.parent, world.child)
    world.on_send = lambda: place.clock.advance(20)

    with pytest.raises(DeadlineExceeded):
        hf.run(world.parent, id="p")

    assert world.sent == ["sam0"]
    assert hf.get("p~1").deadline_at == hf.get("p").deadline_at
    with pytest.raises(DeadlineExceeded):
        hf.result("p~1")


def test_a_child_may_have_an_earlier_deadline(place: Place) -> None:
    world = World(of_parent={"deadline": 60}, of_child={"deadline": 10})
    hf = place.open(world.parent, world.child)
    hf.run(world.parent, id="p")

    parent, child = hf.get("p").deadline_at, hf.get("p~1").deadline_at
    assert parent is not None and child is not None and child < parent


def test_a_parent_past_its_deadline_does_not_complete_because_it_catches_the_childs_failure(
    place: Place,
) -> None:
    world = World()

    @agent(deadline=10)
    def parent(run: Run) -> str:
        try:
            return world.child("sam")
        except CallFailed:
            return "late"

    world.on_send = lambda: place.clock.advance(20)

    with pytest.raises(DeadlineExceeded):
        place.open(parent, world.child).run(parent, id="p")


def test_a_suspended_child_fails_at_its_parents_deadline_even_if_no_process_was_running(
    place: Place,
) -> None:
    world = World(of_parent={"deadline": 10}, waits=True)
    waits(place.open(world.parent, world.child), world.parent, "p")
    place.clock.advance(20)
    hf = place.open(world.parent, world.child)

    hf.worker().run(once=True)

    for run_id in ("p", "p~1"):
        with pytest.raises(DeadlineExceeded):
            hf.result(run_id)


# ── budget ───────────────────────────────────────────────────────────────────────────────────


@step
def think(tokens: int) -> Any:
    return Thought(Usage(output_tokens=tokens))


class Thought(str):
    usage: Usage

    def __new__(cls, usage: Usage) -> Thought:
        made = super().__new__(cls, "hm")
        made.usage = usage
        return made


@agent
def thinker(run: Run, times: int, tokens: int = 10) -> int:
    for _ in range(times):
        think(tokens)
    return times


def test_the_steps_of_children_count_against_their_parents_budget(place: Place) -> None:
    @agent(budget=Budget(max_steps=7))
    def parent(run: Run) -> int:
        return sum(thinker(2) for _ in range(5))

    hf = place.open(parent, thinker)

    with pytest.raises(BudgetExceeded, match="max_steps is 7, and 7 are used"):
        hf.run(parent, id="p")

    made = [hf.get(row.id).steps for row in reversed(hf.runs(parent="p"))]
    assert made == [2, 2, 0]  # and three calls of children: seven steps
    assert hf.get("p").child_steps == 4


def test_a_child_cannot_use_more_tokens_than_its_parent_has_left(place: Place) -> None:
    @agent(budget=Budget(max_llm_tokens=35))
    def parent(run: Run) -> int:
        think(10)
        return thinker(5)

    hf = place.open(parent, thinker)

    with pytest.raises(BudgetExceeded):
        hf.run(parent, id="p")

    assert hf.get("p~2").budget == {"max_llm_tokens": 25.0}
    assert hf.get("p~2").usage.output_tokens == 30  # the call that goes over the limit is the last
    with pytest.raises(BudgetExceeded):
        hf.result("p~2")


def test_a_child_may_have_a_smaller_budget(place: Place) -> None:
    @agent(budget=Budget(max_steps=2))
    def small(run: Run) -> None:
        thinker(5)

    @agent(budget=Budget(max_steps=50))
    def parent(run: Run) -> str:
        try:
            small()
        except CallFailed as failed:
            return failed.error_type
        return "?"

    hf = place.open(parent, small, thinker)

    assert hf.run(parent, id="p") == "BudgetExceeded"
    assert hf.get("p~1~1").budget == {"max_steps": 1.0}


def test_what_a_child_used_elsewhere_counts_when_it_has_ended(place: Place) -> None:
    @agent
    def child(run: Run) -> int:
        run.wait_for("go")
        return sum(len(think(10)) for _ in range(3))

    @agent(budget=Budget(max_steps=5))
    def parent(run: Run) -> float:
        child()
        return run.budget.left["max_steps"]

    waits(place.open(parent, child), parent, "p")
    there = place.open(child)
    there.signal("p~1", "go")
    there.worker().run(once=True)
    hf = place.open(parent, child)

    assert hf.run(parent, id="p") == 1.0
    assert hf.get("p").usage.output_tokens == 30


def test_a_parent_out_of_budget_ends_its_open_children_for_the_same_reason(place: Place) -> None:
    @agent
    def child(run: Run) -> None:
        run.wait_for("never")

    @agent(budget=Budget(max_steps=3))
    def parent(run: Run) -> None:
        def branch(n: int) -> None:
            if n == 0:
                child()
            for _ in range(5 * n):
                think(1)

        run.map(branch, [0, 1])

    hf = place.open(parent, child)
    with pytest.raises(BudgetExceeded):
        hf.run(parent, id="p")

    with pytest.raises(BudgetExceeded, match="the budget is used up"):
        hf.result("p~1")


# ── the policy itself ────────────────────────────────────────────────────────────────────────

RISKS = st.frozensets(st.sampled_from(["read", "write_local", "external_action"]))
NAMES = st.frozensets(st.sampled_from(["token", "password"]))
LIMITS = st.dictionaries(
    st.sampled_from(Budget.__struct_fields__), st.floats(0, 1e6, allow_nan=False), max_size=5
)
POLICIES = st.builds(
    Policy,
    approve=RISKS,
    approval_ttl=st.none() | st.floats(0, 1e6, allow_nan=False),
    deadline_at=st.none() | st.integers(0, 2**50),
    budget=LIMITS,
    redact=NAMES,
    exempt=st.frozensets(st.sampled_from(["approve", "redact"])),
)


def is_within(inner: Any, outer: Any) -> bool:
    return outer is None or (inner is not None and inner <= outer)


@given(parent=POLICIES, child=POLICIES, used=LIMITS)
def test_a_narrowed_policy_is_never_wider_than_either(
    parent: Policy, child: Policy, used: dict[str, float]
) -> None:
    both = parent.narrow(child, used)

    for one in (parent, child):
        assert both.approve >= one.approve and both.redact >= one.redact
        assert is_within(both.approval_ttl, one.approval_ttl)
        assert is_within(both.deadline_at, one.deadline_at)
        assert all(is_within(both.budget.get(name), limit) for name, limit in one.budget.items())
    for name, limit in parent.budget.items():
        assert both.budget[name] <= max(0.0, limit - used.get(name, 0))


@given(inherited=POLICIES, own=POLICIES, child=POLICIES)
def test_inherited_settings_reach_every_descendant_even_below_an_exempt_run(
    inherited: Policy, own: Policy, child: Policy
) -> None:
    handed = inherited.narrow(own).passed_on(inherited)
    below = handed.narrow(child)

    assert below.approve >= inherited.approve and below.redact >= inherited.redact
    assert is_within(below.approval_ttl, inherited.approval_ttl)
    assert is_within(below.deadline_at, inherited.deadline_at)
    if "approve" not in own.exempt:
        assert below.approve >= own.approve


@given(policy=POLICIES)
def test_what_is_recorded_of_a_policy_is_what_is_required(policy: Policy) -> None:
    back = Policy.recorded(policy.inherited())

    assert (back.approve, back.redact) == (policy.approve, policy.redact)
