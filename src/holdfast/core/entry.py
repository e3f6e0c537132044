"""What the log contains at one place: a call or a wait of the code, with its attempts, decisions and outcome."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core import events as e

Place = tuple[str, int]
"""A branch, and a position within it."""


def request_id(place: Place) -> str:
    """How people name a request, or a call, at a place."""
    return f"{place[0]}#{place[1]}"


class Entry(msgspec.Struct, eq=False, gc=False):
    """What the log contains at one place.

    (One is made for each step of a log that is read: C makes it, and the collector does not walk it.)
    """

    name: str = ""
    digest: str = ""
    step: int = 0
    intent: e.CallStarted | None = None
    intent_seq: int = 0
    first_intent_at: int = 0
    failures: Sequence[e.CallFailure] = ()
    done: e.CallSucceeded | None = None
    resolved: e.CallResolved | None = None
    doubted: e.CallDoubted | None = None
    wait: e.WaitBegan | None = None
    wait_seq: int = 0
    wait_at: int = 0
    ended: e.WaitEnded | None = None
    ended_at: int = 0
    """When its wait ended, or its last attempt failed."""
    approval: e.ApprovalDecided | None = None
    approval_seq: int = 0
    answer: e.AnswerGiven | None = None
    answer_seq: int = 0
    granted: bool = False
    """A failed run was resumed: this call may be tried again, with a fresh set of attempts."""
    granted_seq: int = 0
    iteration: e.IterationEnded | None = None
    timeout: e.TimeoutFired | None = None
    attempts_before: int = 0
    settled_attempts: int = 0
    """How many attempts there were when a person, a check or a policy last said to try again."""
    first_seq: int = 0
    seq: int = 0
    """The seq of its last event: what the code may see when it has returned from here."""

    @property
    def args_digest(self) -> str:
        """The name of what the code asked for; empty if the log does not say."""
        if self.wait is not None and self.wait.tool:  # a person may have edited it since
            return self.wait.digest
        named = "" if self.done is None else e.args_digest(self.done)
        return named or self.digest

    @property
    def args(self) -> e.Value | None:
        """What the code asked for; None if the log has no more than its digest."""
        if self.wait is not None and self.wait.tool:
            return self.wait.show
        if self.intent is not None:
            return self.intent.args
        if self.done is not None:
            return self.done.args
        return self.failures[-1].args if self.failures else None

    @property
    def is_wait(self) -> bool:
        """Whether code waited here; an approval may also precede a call."""
        return self.wait is not None and self.intent is None and not self.wait.tool

    @property
    def final(self) -> bool:
        """Whether it has an outcome that the code will be given."""
        if self.done is not None or (self.ended is not None and self.is_wait):
            return True
        if self.timeout is not None or self.iteration is not None:
            return True
        return self.settled_as("done") or self.failed_finally

    def settled_as(self, how: str) -> bool:
        """Whether a doubt about it was resolved this way."""
        return self.resolved is not None and self.resolved.how == how

    @property
    def failed_finally(self) -> bool:
        """Whether it failed and no other attempt is due."""
        if self.granted or self.settled_as("retry"):
            return False
        if self.settled_as("failed"):
            return True
        return bool(self.failures) and self.failures[-1].retry_at is None and not self.open_attempt

    @property
    def is_cut_off(self) -> bool:
        """Whether the code stopped waiting for it. It was given no answer then, and is given none again."""
        if self.ended is not None:
            return self.ended.is_over("cut")
        return bool(self.failures) and self.failures[-1].cut and self.failed_finally

    @property
    def forks_above(self) -> tuple[int, ...]:
        """What was recorded of the branches above when the code stopped waiting; see `CallFailure`."""
        if self.ended is not None:
            return self.ended.forks_above
        return self.failures[-1].forks_above if self.failures else ()

    @property
    def open_attempt(self) -> bool:
        """Whether the newest attempt has an intent and no receipt: it may have happened."""
        if self.intent is None or self.done is not None or self.resolved is not None:
            return False
        return not any(f.attempt == self.intent.attempt for f in self.failures)

    @property
    def attempts(self) -> int:
        """How many attempts the log contains of."""
        last_failed = self.failures[-1].attempt if self.failures else 0
        return max(last_failed, self.intent.attempt if self.intent else 0)

    def position(self, place: Place) -> Place:
        """Where in its branch this is, which is recorded at a place: a timeout is so at one of its own."""
        return place if self.timeout is None else (place[0], self.timeout.index)
