"""The types of agents: what a type checker knows of a function that `@agent` has declared.

An agent is still a function. These are protocols that describe it: its parameters without the run (`P`), and the result
of its runs (`R`). `agent.bind(…)` gives an agent together with the input of one run, as a value: that is how the input is
checked when `hf.run` and `hf.start` are given options of their own (a ParamSpec leaves no place for these).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from msgspec import Struct, field

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class BoundAgent(Struct, Generic[R_co], frozen=True):
    """An agent with the input of one run: what `agent.bind(…)` returns, for `hf.run` and `hf.start`."""

    agent: Callable[..., Any]
    args: tuple[Any, ...] = ()
    input: Mapping[str, Any] = field(default_factory=dict)


class AnyAgent(Protocol[P, R_co]):
    """An agent of either kind. `P` are its parameters after the run, `R` is what its runs return."""

    def bind(self, *args: P.args, **input: P.kwargs) -> BoundAgent[R_co]:
        """The agent with the input of one run. Input that does not fit raises InvalidInput."""
        ...


class Agent(AnyAgent[P, R_co], Protocol[P, R_co]):
    """A plain agent, `def`. Called inside another agent it is a child run."""

    __name__: str

    def __call__(self, *args: P.args, **input: P.kwargs) -> R_co: ...


class AsyncAgent(AnyAgent[P, R_co], Protocol[P, R_co]):
    """An `async def` agent. Called and awaited inside another agent it is a child run."""

    __name__: str

    def __call__(self, *args: P.args, **input: P.kwargs) -> Coroutine[Any, Any, R_co]: ...
