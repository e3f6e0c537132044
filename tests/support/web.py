"""Agents and credentials for tests of the server."""

from __future__ import annotations

from typing import Any

from holdfast import Run, agent, step, tool
from holdfast.control.roles import ROLES
from holdfast.web.credentials import Credential, digest_of

TOKENS = {role: f"hf_test-token-of-{role}" for role in ROLES}
NAMES = {"viewer": "vic", "approver": "ann", "operator": "olga", "admin": "ada"}


def credentials() -> tuple[Credential, ...]:
    """One credential for each role."""
    return tuple(Credential(NAMES[r], r, digest_of(TOKENS[r]), 0) for r in ROLES)


@step
def look(n: int) -> int:
    return n + 1


@tool(risk="external_action")
def send(to: str) -> str:
    return f"sent to {to}"


@agent
def job(run: Run, n: int = 1) -> int:
    """Adds one."""
    run.state.seen = look(n)
    return n + 1


@agent(approve=("external_action",))
def mail(run: Run, to: str) -> str:
    return send(to)


@agent
def quiz(run: Run) -> Any:
    return run.ask("Which one?", options=["a", "b"])


@agent
def patient(run: Run) -> Any:
    run.artifact("report.txt", b"0123456789" * 10, type="text/plain")
    run.state.asked = True
    return run.wait_for("go")


AGENTS = [job, mail, quiz, patient]
