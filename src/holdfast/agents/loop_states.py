"""The kinds of state that a loop may have: an `AgentState`, or a value of the user's own kind held inside one.

Whatever the kind, what is stored is an `AgentState` with its phase, iteration and times, so that limits, patches, replay and
views work alike. What the loop's function sees is its own kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core import values
from holdfast.core.agent_state import AgentState, HeldState, Phase
from holdfast.core.values import Codec
from holdfast.errors import InvalidInput, NotStorable


class OwnStates:
    """States that are `AgentState`s: what is stored is what the function sees."""

    def __init__(self, kind: type[Any], stored: type[AgentState]) -> None:
        self.kind, self.stored = kind, stored

    @property
    def input(self) -> Any:
        """The type of the loop's first argument."""
        return str | self.kind

    def first(self, value: Any) -> AgentState:
        """The first state, of a goal or of one that was given."""
        state: AgentState = self.stored.begin(value) if isinstance(value, str) else value
        return state.to_planning() if state.phase is Phase.IDLE else state

    def shown(self, state: AgentState) -> Any:
        """What the loop's function sees of a stored state."""
        return state

    def returned(self, _given: AgentState, value: Any) -> AgentState:
        """The stored state of what the function returned."""
        state: AgentState = value
        return state

    def wrong(self, _state: AgentState) -> str:
        """Why the function could not be given this state; empty if it can."""
        return ""


class HeldStates(OwnStates):
    """States of another kind, each held in an `AgentState` as a plain value."""

    def __init__(self, kind: type[Any], until: Callable[[Any], bool]) -> None:
        super().__init__(kind, HeldState)
        self._codec, self._until = Codec(kind), until

    @property
    def input(self) -> Any:
        return self.kind

    def first(self, value: Any) -> AgentState:
        return self.returned(HeldState(phase=Phase.PLANNING), value)

    def shown(self, state: AgentState) -> Any:
        assert isinstance(state, HeldState)
        return self._codec.decode(values.encode(state.value))

    def returned(self, previous: AgentState, value: Any) -> AgentState:
        plain = values.decode(self._codec.encode(value))
        state = previous.replace(value=plain)
        return state.to_done() if self._until(self.shown(state)) else state

    def wrong(self, state: AgentState) -> str:
        try:
            self.shown(state)
        except NotStorable as error:
            return f"{error.of('the patched state')}"
        return ""


def states_of(name: str, kind: Any, until: Callable[[Any], bool] | None) -> OwnStates:
    """How a loop's states are stored and shown, by the annotation of its second parameter."""
    if until is not None and not callable(until):
        raise InvalidInput(f"loop {name}: until must be a function of the state, not {until!r}")
    if isinstance(kind, type) and issubclass(kind, AgentState):
        if until is not None:
            raise InvalidInput(f"loop {name}: an AgentState is done after to_done; remove until=")
        return OwnStates(kind, kind)
    if not isinstance(kind, type) or not (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, msgspec.Struct)
        or values.is_pydantic_model(kind)
    ):
        raise InvalidInput(
            f"the state of loop {name} must be an AgentState, a dataclass, a msgspec Struct or a pydantic "
            f"model, not {kind!r}"
        )
    if until is None:
        raise InvalidInput(
            f"loop {name}: declare when a {kind.__name__} is final: @loop(until=lambda state: …)"
        )
    return HeldStates(kind, until)
