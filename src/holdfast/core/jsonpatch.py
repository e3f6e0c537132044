"""JSON Patch (RFC 6902) over JSON Pointer (RFC 6901): a list of operations, applied whole or not at all.

Plain JSON values in, plain JSON values out. `apply` leaves the document it is given as it was. An operation
that cannot be applied raises `InvalidPatch`, which names it by its number, its kind and its path.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.core import values
from holdfast.errors import InvalidPatch

_INDEX: Final = re.compile(r"0|[1-9][0-9]*")
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("value",),
    "remove": (),
    "replace": ("value",),
    "move": ("from",),
    "copy": ("from",),
    "test": ("value",),
}


class PatchOperation(NamedTuple):
    """One checked operation; its pointers are split into their unescaped tokens."""

    number: int
    op: str
    path: tuple[str, ...]
    source: tuple[str, ...] = ()
    value: Any = None

    def refuse(self, reason: str) -> InvalidPatch:
        """The error that says why this operation cannot be applied."""
        return InvalidPatch(self.number, self.op, pointer(self.path), reason)


def pointer(tokens: Sequence[str]) -> str:
    """The JSON Pointer of these tokens."""
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)


def tokens_of(text: str) -> tuple[str, ...]:
    """The unescaped tokens of a JSON Pointer; ValueError if it is none."""
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} is not a JSON Pointer: it must be empty or start with /")
    if re.search(r"~(?![01])", text):
        raise ValueError(f"{text!r} is not a JSON Pointer: write ~ as ~0, and / in a name as ~1")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])


def operations(patch: Any) -> list[PatchOperation]:
    """The operations of a patch, checked for everything that can be seen without a document."""
    if not isinstance(patch, list | tuple):
        raise InvalidPatch(0, "", "", f"a JSON Patch is a list of operations, not {patch!r}")
    return [_checked(number, raw) for number, raw in enumerate(patch)]


def _checked(number: int, raw: Any) -> PatchOperation:
    if not isinstance(raw, Mapping):
        raise InvalidPatch(number, "", "", f"an operation is an object, not {raw!r}")
    op, path = raw.get("op"), raw.get("path")
    shown_op, shown_path = (x if isinstance(x, str) else "" for x in (op, path))
    if not isinstance(op, str) or op not in _NEEDS:
        known = ", ".join(_NEEDS)
        raise InvalidPatch(number, shown_op, shown_path, f"op must be one of {known}, not {op!r}")
    found: dict[str, tuple[str, ...]] = {}
    for name in ("path", *(x for x in _NEEDS[op] if x == "from")):
        text = raw.get(name)
        if not isinstance(text, str):
            raise InvalidPatch(number, op, shown_path, f"it needs a member {name!r} that is text")
        try:
            found[name] = tokens_of(text)
        except ValueError as error:
            raise InvalidPatch(number, op, shown_path, str(error)) from None
    if "value" in _NEEDS[op] and "value" not in raw:
        raise InvalidPatch(number, op, shown_path, "it needs a member 'value'")
    value = values.lower(raw.get("value"))
    return PatchOperation(number, op, found["path"], found.get("from", ()), value)


def apply(document: Any, patch: Any) -> Any:
    """The document with every operation applied; InvalidPatch, and nothing changed, if one cannot be."""
    return values.freeze(apply_in_place(values.thaw(document), operations(patch)))


def apply_in_place(document: Any, ops: Sequence[PatchOperation]) -> Any:
    """For the owner of a changeable document: apply, and return it (a patch may replace the root).

    If an operation fails, those before it have been applied: `apply` works on a copy.
    """
    for op in ops:
        document = _APPLY[op.op](document, op)
    return document


def _add(document: Any, op: PatchOperation) -> Any:
    return _put(document, op, values.thaw(op.value))


def _put(document: Any, op: PatchOperation, value: Any) -> Any:
    if not op.path:
        return value
    *above, last = op.path
    parent = _find(document, tuple(above), op)
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else _index(parent, last, op, end=True), value)
    else:
        raise op.refuse(f"{_shown(above)} is not an object or array, so nothing can be added to it")
    return document


def _remove(document: Any, op: PatchOperation) -> Any:
    _take(document, op.path, op)
    return document


def _take(document: Any, path: tuple[str, ...], op: PatchOperation) -> Any:
    if not path:
        raise op.refuse("the whole document cannot be removed; replace it")
    *above, last = path
    parent = _find(document, tuple(above), op)
    _find(parent, (last,), op, within=tuple(above))
    return parent.pop(last if isinstance(parent, dict) else int(last))


def _replace(document: Any, op: PatchOperation) -> Any:
    value = values.thaw(op.value)
    if not op.path:
        return value
    *above, last = op.path
    parent = _find(document, tuple(above), op)
    _find(parent, (last,), op, within=tuple(above))
    parent[last if isinstance(parent, dict) else int(last)] = value
    return document


def _move(document: Any, op: PatchOperation) -> Any:
    if op.path == op.source:
        _find(document, op.source, op)
        return document
    if op.path[: len(op.source)] == op.source:
        raise op.refuse(f"{_shown(op.source)} cannot be moved into itself")
    return _put(document, op, _take(document, op.source, op))


def _copy(document: Any, op: PatchOperation) -> Any:
    return _put(document, op, values.thaw(_find(document, op.source, op)))


def _test(document: Any, op: PatchOperation) -> Any:
    found = _find(document, op.path, op)
    if not same(found, op.value):
        raise op.refuse(f"the value there is {_short(found)}, not {_short(op.value)}")
    return document


_APPLY: Final = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


def same(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, and true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def _find(
    document: Any, path: tuple[str, ...], op: PatchOperation, *, within: tuple[str, ...] = ()
) -> Any:
    here = document
    for depth, token in enumerate(path):
        if isinstance(here, dict):
            if token not in here:
                raise op.refuse(f"no {_shown((*within, *path[: depth + 1]))}")
            here = here[token]
        elif isinstance(here, list):
            here = here[_index(here, token, op)]
        else:
            above = _shown((*within, *path[:depth]))
            raise op.refuse(f"{above} is not an object or array, so it has no {token!r}")
    return here


def _index(items: list[Any], name: str, op: PatchOperation, *, end: bool = False) -> int:
    if not _INDEX.fullmatch(name):
        hint = "; - is only for adding" if name == "-" else ""
        raise op.refuse(f"{name!r} is not an array index{hint}")
    if len(name) > 18 or int(name) >= len(items) + end:
        raise op.refuse(f"index {name} is beyond the array, which has {len(items)} items")
    return int(name)


def _shown(path: Sequence[str]) -> str:
    return pointer(path) or "the document"


def _short(value: Any) -> str:
    text = values.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"
