"""The journal keeps what the code has yet to ask for, and nothing else."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import events as e
from holdfast.core.events import NULL, ErrorInfo
from holdfast.core.journal import Journal
from holdfast.core.journal_feed import feed


def _outcome(n: int, branch: str, *, failed: bool) -> e.Event:
    if failed:
        error = ErrorInfo("ValueError", "no")
        return e.CallFailure(branch=branch, index=n, step=n + 1, name="f", error=error)
    return e.CallSucceeded(branch=branch, index=n, step=n + 1, name="f", result=NULL)


@given(
    st.lists(st.tuples(st.sampled_from(["", "0-1", "0-2"]), st.booleans()), max_size=30),
    st.randoms(use_true_random=False),
)
def test_nothing_is_kept_of_what_the_code_has_been_given(
    calls: list[tuple[str, bool]], order: random.Random
) -> None:
    """A run of a million steps was resumed with a list of a million outcomes."""
    journal = Journal()
    for n, (branch, failed) in enumerate(calls):
        feed(journal, n, 0, _outcome(n, branch, failed=failed))
    given_out = [(branch, n) for n, (branch, _) in enumerate(calls)]
    order.shuffle(given_out)

    for place in given_out:
        journal.forget(*place)

    assert not journal.entries
    assert not journal.outcomes
