"""Lists and dicts that cannot be changed in place: what a run's state returns."""

from __future__ import annotations

from typing import Any, NoReturn


class FrozenDict(dict[str, Any]):
    """A dict that was read from a run's state. Change the state through `run.state`, not in place."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "this dict comes from the run's state and cannot be changed in place; "
            "assign a new value (run.state.key = {**old, 'x': 1}) so that the change is recorded"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy is an ordinary dict


class FrozenList(list[Any]):
    """A list that was read from a run's state. Use `run.state.append(key, value)` to grow it."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "this list comes from the run's state and cannot be changed in place; "
            "use run.state.append(key, value), or assign a new list, so that the change is recorded"
        )

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # a copy is an ordinary list


def freeze(value: Any) -> Any:
    """Plain JSON with its lists and dicts made read-only, all the way down."""
    kind = type(value)
    if kind is dict:
        return FrozenDict((k, freeze(v)) for k, v in value.items())
    if kind is list:
        return FrozenList(map(freeze, value))
    return value


def thaw(value: Any) -> Any:
    """An ordinary, changeable copy of a frozen value."""
    if isinstance(value, dict):
        return {k: thaw(v) for k, v in value.items()}
    if isinstance(value, list):
        return [thaw(v) for v in value]
    return value
