"""A failed run is resumed: the failed call is tried again, and what followed it need not repeat itself."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import (
    Approval,
    CallFailed,
    Diverged,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    tool,
)


class World:
    """A bank that is down until it is fixed, and what has really happened."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.down: set[int] = set()
        self.says = "down"

        @tool
        def pay(n: int) -> str:
            if n in self.down:
                raise ConnectionError(self.says)
            self.happened.append(f"pay {n}")
            return f"paid {n}"

        @tool
        def notify(text: str) -> None:
            self.happened.append(f"notify {text}")

        self.pay, self.notify = pay, notify


@pytest.fixture
def world() -> World:
    return World()


def fails(hf: Any, main: Any) -> None:
    with pytest.raises(RunFailed):
        hf.run(main, id="r")


def telling(world: World) -> Any:
    """What people write: tell someone, and fail anyway."""

    @agent
    def main(run: Run) -> list[Any]:
        world.pay(1)
        try:
            world.pay(2)
        except CallFailed as error:
            run.state.outcome = "bad"
            world.notify(error.message)
            raise
        run.state.outcome = "good"
        first = world.pay(3)
        return [first, run.state.outcome]

    return main


def failed_and_repaired(home: Any, world: World) -> Any:
    """The agent of run `r`, which has failed; what it failed of is over."""
    main = telling(world)
    world.down = {2}
    fails(home.open(), main)
    world.down = set()
    return main


def test_code_that_handled_the_failure_continues_when_the_call_succeeds(
    home: Any, world: World
) -> None:
    main = failed_and_repaired(home, world)

    assert home.open(main).resume("r") == ["paid 3", "good"]

    assert world.happened == ["pay 1", "notify down", "pay 2", "pay 3"]
    state = home.open().get("r")
    assert [(c.step, c.name, c.status) for c in state.calls] == [
        (1, "pay", "done"),
        (2, "pay", "done"),
        (3, "notify", "done"),
        (4, "pay", "done"),
    ]
    assert home.open(main).replay("r").diverged is None


def test_a_call_that_fails_again_in_the_same_way_sends_no_second_notification(
    home: Any, world: World
) -> None:
    main = telling(world)
    world.down = {2}
    fails(home.open(), main)
    for _ in range(2):
        with pytest.raises(RunFailed):
            home.open(main).resume("r")
    assert world.happened == ["pay 1", "notify down"]

    world.says = "still down"
    with pytest.raises(RunFailed):
        home.open(main).resume("r")
    assert world.happened == ["pay 1", "notify down", "notify still down"]

    world.down = set()
    assert home.open(main).resume("r") == ["paid 3", "good"]
    assert world.happened[3:] == ["pay 2", "pay 3"]


def test_what_was_done_after_the_failure_is_not_done_again(home: Any, world: World) -> None:
    """Code that collects failures and raises at the end has finished the rest already."""

    @agent
    def main(run: Run) -> list[str]:
        paid, failed = [], []
        for n in (1, 2, 3, 4):
            try:
                paid.append(world.pay(n))
            except CallFailed as error:
                world.notify(f"{n} {error.message}")
                failed.append(error)
        if failed:
            raise failed[0]
        return paid

    world.down = {2, 4}
    fails(home.open(), main)
    assert world.happened == ["pay 1", "notify 2 down", "pay 3", "notify 4 down"]

    world.down = {4}
    with pytest.raises(RunFailed):
        home.open(main).resume("r")
    world.down = set()

    assert home.open(main).resume("r") == ["paid 1", "paid 2", "paid 3", "paid 4"]
    assert sorted(world.happened) == [
        "notify 2 down",
        "notify 4 down",
        "pay 1",
        "pay 2",
        "pay 3",
        "pay 4",
    ]


def test_code_that_ends_earlier_than_its_failure_path_ends(home: Any, world: World) -> None:
    @agent
    def main(run: Run) -> str:
        try:
            return world.pay(1)
        except CallFailed:
            world.notify("a")
            world.notify("b")
            raise

    world.down = {1}
    fails(home.open(), main)
    world.down = set()

    assert home.open(main).resume("r") == "paid 1"


def test_a_new_path_may_wait_where_the_old_one_called(home: Any, world: World) -> None:
    @agent
    def main(run: Run) -> list[Any]:
        try:
            world.pay(1)
        except CallFailed:
            world.notify("no")
            raise
        got = run.wait_any("go", Approval("Go on?"))
        return [got, world.pay(2)]

    world.down = {1}
    fails(home.open(), main)
    world.down = set()
    with pytest.raises(RunWaiting):
        home.open(main).resume("r")
    home.open().signal("r", "go", 7)

    assert home.open().run(main, id="r") == [["go", 7], "paid 2"]
    assert world.happened == ["notify no", "pay 1", "pay 2"]


@pytest.mark.parametrize(
    "point",
    [
        "before pay",
        "before commit call_started",
        "after commit call_started",
        "after commit call_succeeded",
    ],
)
def test_a_crash_on_the_new_path_finds_it_again(home: Any, world: World, point: str) -> None:
    main = failed_and_repaired(home, world)
    home.crash_in(lambda hf: hf.resume("r"), main, at=point)

    hf = home.open(main)
    if hf.get("r").in_doubt:  # each of these crashes comes before the effect
        hf.resolve("r", retry=True)
    assert hf.run(main, id="r") == ["paid 3", "good"]
    assert world.happened == ["pay 1", "notify down", "pay 2", "pay 3"]


def test_other_code_still_diverges_on_the_new_path(home: Any, world: World) -> None:
    world.down = {2}
    fails(home.open(), telling(world))
    world.down = set()
    hf = home.open(telling(world))
    home.crash_in(lambda hf: hf.resume("r"), telling(world), at="before commit run_completed")

    @agent(name="main")
    def other(run: Run) -> Any:
        world.pay(1)
        world.pay(2)
        return world.pay(5)

    with pytest.raises(Diverged, match=r"(?s)recorded:.*pay.*3.*attempted:.*pay.*5"):
        hf.run(other, id="r")
    assert "pay 5" not in world.happened


def test_a_fork_of_a_resumed_run_continues_from_there(home: Any, world: World) -> None:
    main = failed_and_repaired(home, world)
    home.open(main).resume("r")

    hf = home.open(main)
    fork = hf.fork("r", 2, id="f")
    assert hf.resume(fork.id) == ["paid 3", "good"]
    assert world.happened == ["pay 1", "notify down", "pay 2", "pay 3", "pay 3"]
