"""Errors of the HTTP API as problem details (RFC 9457), and the same errors again at the client.

One table gives each error its HTTP status. The problem's type is the name of the error's class, in words.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from holdfast import errors

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


def problem(name: str, status: int, detail: str, **more: Any) -> Problem:
    """A problem that is not an error of Holdfast's, such as a body that is too large."""
    return Problem(TYPE_PREFIX + name, title_of(name), status, detail, **more)


def problem_of(error: errors.HoldfastError, instance: str = "") -> Problem:
    """What Holdfast refuses, as a problem. The lines after the first say what to do next."""
    status = next(status for cls, status in STATUS_OF if isinstance(error, cls))
    detail, _, following = str(error).partition("\n")
    name = name_of(type(error))
    return Problem(TYPE_PREFIX + name, title_of(name), status, detail, instance, following.strip())
