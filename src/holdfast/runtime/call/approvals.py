"""Which risks of a run's calls need a person: what its policy requires, and what its state demands beyond that."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core.policy import Policy
from holdfast.runtime.log.session import Session


def require_approvals(session: Session, declared: Policy, demanded: Iterable[str]) -> None:
    """From here on the gate asks for these risks too, besides those that the run's own policy requires.

    A state can demand more than the agent and its parents, never less.
    """
    approve = declared.approve.union(demanded)
    if approve != session.lineage.policy.approve:
        session.lineage.policy = replace(declared, approve=approve)
