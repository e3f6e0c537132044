"""Errors of the HTTP API as problem details (RFC 9457), and the same errors again at the client.

One table gives each error its HTTP status. The problem's type is the name of the error's class, in words.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from holdfast import errors
from holdfast.waiting import WaitingFor

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:holdfast:problem:"

STATUS_OF: Final[tuple[tuple[type[errors.HoldfastError], int], ...]] = (
    (errors.NoSuchRun, 404),
    (errors.NotFound, 404),
    (errors.InputConflict, 409),
    (errors.InvalidInput, 422),
    (errors.AlreadyDecided, 409),
    (errors.NotResumable, 409),
    (errors.NotNow, 409),
    (errors.AccessDenied, 403),
    (errors.Conflict, 412),
    (errors.RunBusy, 409),
    (errors.RunWaiting, 409),
    (errors.RunFailed, 409),
    (errors.StorageFull, 507),
    (errors.ReadOnlyStore, 403),
    (errors.StoreUnavailable, 503),
    (errors.StoreError, 500),
    (errors.LogDamaged, 500),
    (errors.HoldfastError, 500),
)
"""The first that fits counts."""


class FieldError(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong in a request. `pointer` is a JSON Pointer into the body."""

    detail: str
    pointer: str = ""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error. `next` says what to do."""

    type: str
    title: str
    status: int
    detail: str
    instance: str = ""
    next: str = ""
    errors: tuple[FieldError, ...] = ()
    context: dict[str, Any] = {}
    """Data of this kind of error, such as both sides of a conflict."""


def name_of(error: type[BaseException]) -> str:
    """`InputConflict` is `input-conflict`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", error.__name__).lower()


def title_of(name: str) -> str:
    return name.replace("-", " ").capitalize()


def problem(name: str, status: int, detail: str, **fields: Any) -> Problem:
    """A problem that is not an error of Holdfast's, such as a body that is too large."""
    return Problem(TYPE_PREFIX + name, title_of(name), status, detail, **fields)


def problem_of(error: errors.HoldfastError, instance: str = "") -> Problem:
    """What Holdfast refuses, as a problem. The lines after the first say what to do next."""
    status = next(status for cls, status in STATUS_OF if isinstance(error, cls))
    detail, _, following = str(error).partition("\n")
    name = name_of(type(error))
    return Problem(
        TYPE_PREFIX + name,
        title_of(name),
        status,
        detail,
        instance,
        following.strip(),
        context=_context(error),
    )


def _context(error: errors.HoldfastError) -> dict[str, Any]:
    """The data that an error carries, as far as it is JSON."""
    found = {}
    for name, value in vars(error).items():
        if not name.startswith("_") and value not in (None, "", ()):
            try:
                found[name] = msgspec.to_builtins(value)
            except TypeError:
                continue
    return found


# ── at the client ────────────────────────────────────────────────────────────────────────────


def error_of(problem: Problem) -> errors.HoldfastError:
    """The error that a server's problem stands for. Its class is one of ours, by its name in this table; its data is what
    the server sent."""
    kind = _CLASSES.get(problem.type.removeprefix(TYPE_PREFIX)) or _by_status(problem.status)
    made = kind.__new__(kind)
    text = problem.detail + (f"\n  {problem.next}" if problem.next else "")
    made.args = (text,)
    for name, value in problem.context.items():
        data = msgspec.convert(value, _CONTEXT_TYPES[name]) if name in _CONTEXT_TYPES else value
        made.__dict__[name] = tuple(data) if isinstance(data, list) else data
    return made


_CONTEXT_TYPES: Final[dict[str, Any]] = {
    "waits": list[WaitingFor],
    "remedies": list[errors.Remedy],
}
"""Data of errors that is more than plain JSON."""


def _by_status(status: int) -> type[errors.HoldfastError]:
    """For problems that are not errors of Holdfast's own, such as a body that is too large."""
    if status in (401, 403, 421):
        return errors.AccessDenied
    if status in (404, 412):
        return errors.NotFound if status == 404 else errors.Conflict
    if status in (408, 429, 502, 503, 504):
        return errors.StoreUnavailable
    return errors.InvalidInput if 400 <= status < 500 else errors.StoreError


def _all_below(cls: type[errors.HoldfastError]) -> list[type[errors.HoldfastError]]:
    return [cls, *(found for below in cls.__subclasses__() for found in _all_below(below))]


_CLASSES: Final = {
    name_of(cls): cls
    for cls in _all_below(errors.HoldfastError)
    if cls.__module__ == errors.__name__ and cls is not errors.NotStorable
}
"""The errors of `holdfast.errors`, by the name of their problem. (NotStorable makes its text from parts.)"""
