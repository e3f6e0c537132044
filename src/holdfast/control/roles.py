"""Roles of people and programs, and what each may do. Every interface with credentials asks here.

A role is given to a credential by an administrator. Nothing in a request, and nothing that an agent writes, changes it.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from holdfast.errors import AccessDenied, InvalidInput

Role = Literal["viewer", "approver", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

_READS: Final = frozenset(
    (
        "get",
        "at",
        "diff",
        "events",
        "timeline",
        "stream",
        "runs",
        "agents",
        "artifact",
        "blob",
        "value",
        "result",
        "verify",
        "export",
        "schedules",
        "inbox",
        "fleet",
        "doctor",
        "whoami",
        "item",
        "items",
    )
)
_DECIDES: Final = frozenset(("approve", "reject", "answer", "resolve"))
_OPERATES: Final = frozenset(
    (
        "start",
        "signal",
        "pause",
        "resume",
        "rerun",
        "cancel",
        "fork",
        "patch",
        "undo",
        "bulk",
        "mcp",
        "record",
        "finish",
        "put_item",
        "delete_item",
    )
)
_ADMINISTERS: Final = frozenset(("gc", "delete", "import", "unschedule", "tokens"))

ALLOWED: Final[dict[Role, frozenset[str]]] = {
    "viewer": _READS,
    "approver": _READS | _DECIDES,
    "operator": _READS | _OPERATES,
    "admin": _READS | _DECIDES | _OPERATES | _ADMINISTERS,
}
"""The verbs that a role may use. An approver does not operate runs, and an operator does not approve."""
READS: Final = _READS


def is_allowed(role: Role, verb: str) -> bool:
    """Whether a role may use a verb. An unknown verb is a bug here, not a permission."""
    if verb not in ALLOWED["admin"]:
        raise AssertionError(f"no role is declared for {verb!r}")
    return verb in ALLOWED[role]


def role_for(verb: str) -> Role:
    """The weakest role that may use a verb."""
    return next(role for role in ROLES if is_allowed(role, verb))


def check_allowed(name: str, role: Role, verb: str) -> None:
    """AccessDenied, which names the role that is needed, if a role may not use a verb."""
    if not is_allowed(role, verb):
        raise AccessDenied(
            f"{name} has the role {role}; {verb} needs the role {role_for(verb)} (or admin)"
        )


def check_role(name: str) -> Role:
    """The role of this name, or InvalidInput."""
    for role in ROLES:
        if role == name:
            return role
    raise InvalidInput(f"unknown role {name!r}; use one of {', '.join(ROLES)}")
