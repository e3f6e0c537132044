"""The people of a batch: they approve, reject, answer, signal, patch, pause, resume, cancel and settle doubts.

Whatever they were told is done goes into the ledger of acknowledgements. Every act carries a token of its own in
`by`, so that its event can be found in the log. Works on the store alone, without the agents' code.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuzz.programs import Program
from fuzz.world import World
from holdfast import HoldfastError, StatePatch, StoreError, control, views
from holdfast.core.events import RunReopened
from holdfast.core.state import Call, RunState, Waiting
from holdfast.core.values import decode
from holdfast.store.base import TERMINAL_STATUSES, Filter, RunRow, Store

LIMIT = 10_000


def rows_of(store: Store, since: int, prefix: str) -> list[RunRow]:
    """All runs of a batch: those that were started, and their children."""
    found = store.runs(Filter(created_after=since), limit=LIMIT)
    return [row for row in found if row.id.startswith(prefix)]


def root_of(run_id: str) -> str:
    return run_id.partition("~")[0]


class People:
    """One process's worth of people."""

    def __init__(
        self,
        store: Store,
        world: World,
        programs: Mapping[str, Program],
        dice: random.Random,
        name: str,
        *,
        may_reject: bool,
        may_conflict: bool = False,
    ) -> None:
        self.store, self.world, self.programs, self.dice = store, world, programs, dice
        self.name = name
        self.may_reject, self.may_conflict = may_reject, may_conflict
        self.acts = 0
        self._states: dict[str, RunState] = {}

    # ── acting ───────────────────────────────────────────────────────────────────────────

    def act(self, what: str, run_id: str, do: Callable[[str], Any], **fields: Any) -> bool:
        """Do something, and keep that it was acknowledged. False if it was refused, as it may be."""
        self.acts += 1
        token = f"{self.name}-{self.acts}"
        try:
            do(token)
        except StoreError:
            raise  # the store is not there: others deal with that
        except HoldfastError:
            return False  # too late, decided already, not yet in doubt …
        self.world.acknowledge(what, run_id, token, at=self.store.now(), **fields)
        return True

    def decide(self, run_id: str, wait: Waiting) -> bool:
        """Satisfy one open wait of a run."""
        store, request = self.store, wait.id
        match wait.wait:
            case "approval":
                if self.may_reject and self.dice.random() >= 0.9:
                    return self.act(
                        "reject",
                        run_id,
                        lambda by: control.reject(store, run_id, request, by=by),
                        request=request,
                    )
                args = self._edited(run_id, wait) if self.acts % 3 == 0 else None
                return self.act(
                    "approve",
                    run_id,
                    lambda by: control.approve(store, run_id, request, args=args, by=by),
                    request=request,
                )
            case "answer":
                value = self.dice.randrange(1000)
                return self.act(
                    "answer",
                    run_id,
                    lambda by: control.answer(store, run_id, value, request, by=by),
                    request=request,
                )
            case "signal":
                return self.signal(run_id, self.dice.choice(wait.of or (wait.name,)))
            case _:
                return False

    def _edited(self, run_id: str, wait: Waiting) -> dict[str, Any] | None:
        """Other arguments for the call that is asked for; None if it is another request."""
        if not wait.tool or wait.show is None:
            return None
        shown: dict[str, Any] = views.value(self.store, run_id, wait.show)
        return {**shown, "n": shown["n"] + 1_000_000} if "n" in shown else None

    def signal(self, run_id: str, name: str) -> bool:
        value, signal_id = self.dice.randrange(1000), f"{self.name}-{self.acts}"
        return self.act(
            "signal",
            run_id,
            lambda by: control.signal(self.store, run_id, name, value, signal_id=signal_id, by=by),
        )

    def settle(self, run_id: str, call: Call) -> bool:
        """Say what became of a call in doubt: what the ledger says."""
        found = [x for x in self.world.effects() if _is_of(x, call)]
        if found:
            done = found[0]["result"]
            return self.act(
                "resolve",
                run_id,
                lambda by: control.resolve(self.store, run_id, call.step, done=done, by=by),
            )
        return self.act(
            "resolve",
            run_id,
            lambda by: control.resolve(self.store, run_id, call.step, retry=True, by=by),
        )

    def resume(self, run_id: str) -> bool:
        return self.act("resume", run_id, lambda by: control.reopen(self.store, run_id, by=by))

    def resume_failed(self, row: RunRow) -> bool:
        """Resume a failed run, as often as its program says. False if that was done."""
        program = self.programs.get(row.id)
        if program is None or row.status != "failed" or not program["people"].get("again"):
            return False
        records = self.store.read(row.id)
        if (
            sum(record.kind == RunReopened.stored_as for record in records)
            >= program["people"]["again"]
        ):
            return False
        return self.resume(row.id)

    def cancel_working(self, rows: Sequence[RunRow]) -> None:
        """Cancel suspended runs whose children work, where a program says so."""
        working = {row.parent for row in rows if row.status == "running"}
        for row in rows:
            plan = self.programs[row.id]["people"] if row.id in self.programs else {}
            is_meant = plan.get("cancel_working") and row.status == "waiting" and row.id in working
            if is_meant and self.dice.random() < 0.2:
                self.cancel(row.id)

    def hesitates(self, row: RunRow) -> bool:
        """Whether the people of this run take their time."""
        seconds = self.programs[root_of(row.id)]["people"].get("hesitate", 0.0)
        return bool(self.store.now() - row.updated_at < 1e6 * seconds)

    def pause(self, run_id: str) -> bool:
        return self.act("pause", run_id, lambda by: control.pause(self.store, run_id, by=by))

    def cancel(self, run_id: str) -> bool:
        return self.act("cancel", run_id, lambda by: control.cancel(self.store, run_id, by=by))

    def patch(self, run_id: str) -> bool:
        value = self.dice.randrange(1000)
        changes: Any = {"outside": value}
        if self.dice.random() < 0.2:
            changes = StatePatch(notes={"outside": value})
        return self.act(
            "patch", run_id, lambda by: control.patch(self.store, run_id, changes, by=by)
        )

    # ── rounds ───────────────────────────────────────────────────────────────────────────

    def serve(self, row: RunRow, eagerness: float = 1.0) -> int:
        """Satisfy the open waits of this run; how many acts were accepted."""
        if row.status in TERMINAL_STATUSES:
            return 0
        done = 0
        if row.status == "paused" and self.dice.random() < eagerness:
            done += self.resume(row.id)
        state = self._state(row)
        sent = {signal.name for signal in state.signals}
        for wait in state.waits:
            if wait.wait == "signal" and sent & set(wait.of or (wait.name,)):
                continue  # already satisfied: another signal would hide a lost wake-up
            if not wait.decided and self.dice.random() < eagerness:
                done += self.decide(row.id, wait)
        is_live = row.is_live(self.store.now())  # then only what is recorded as in doubt counts
        for call in state.in_doubt:
            # Others are settled by the next worker, except before an undo.
            blocks = is_live or call.effect == "once" or row.status == "waiting"
            if (blocks or self.may_conflict) and self.dice.random() < eagerness:
                done += self.settle(row.id, call)
        return done

    def _state(self, row: RunRow) -> RunState:
        """The run's state, folded again only if its log has grown."""
        known = self._states.get(row.id)
        if known is None or self.store.heads([row.id]).get(row.id) != known.seq:
            known = self._states[row.id] = views.folded(self.store, row.id)
        return views.with_owner(known, row, self.store.now())

    def trouble(self, row: RunRow, age: float, done: dict[str, Any]) -> None:
        """What people do to this run without being asked: by its program, at its age in seconds."""
        program = self.programs.get(row.id)
        if program is None or row.status in TERMINAL_STATUSES:
            return
        plan, already = program["people"], done.setdefault(row.id, {"patches": 0})
        if already["patches"] < plan.get("patches", 0):
            for _ in range(self.dice.randint(1, 4)):
                already["patches"] += self.patch(row.id)
        if age >= plan.get("pause", 1e9) and "pause" not in already:
            already["pause"] = self.pause(row.id)
        if age >= plan.get("cancel", 1e9) and "cancel" not in already:
            already["cancel"] = self.cancel(row.id)


def _is_of(effect: dict[str, Any], call: Call) -> bool:
    args = decode(call.args.json) if call.args is not None else None
    return bool(
        effect["tool"] == call.name and effect["key"] in ("", call.key) and effect["args"] == args
    )
