"""Which risks of a run's calls need a person: what its agent declares, and what its state demands beyond that."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from holdfast.runtime.session import Session, Setting


def require_approvals(session: Session, declared: Setting, demanded: Iterable[str]) -> None:
    """From here on the gate asks for these risks too, besides those that the agent declares.

    A state can demand more than its agent, never less.
    """
    approve = tuple(dict.fromkeys((*declared.approve, *demanded)))
    if approve != session.setting.approve:
        session.setting = dataclasses.replace(declared, approve=approve)
        session.takes_plain_steps = declared.checkpoint.at_step and "read" not in approve
