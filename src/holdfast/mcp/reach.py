"""Who is connected, and which agents' tasks it can reach.

The operator decides this, when the server is started, and never the client: nothing in a request changes it. A
task that cannot be reached is answered like one that does not exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from holdfast import views
from holdfast.errors import InvalidInput, NoSuchRun
from holdfast.store.base import RunRow, Store

ANY: Final = "*"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@~=+-]{0,99}")


@dataclass(frozen=True, slots=True)
class Identity:
    """The agent that a connection acts as. `allowed` names the agents whose tasks it can reach, beyond its own."""

    name: str
    allowed: tuple[str, ...] = ()
    may_answer: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        for agent in self.allowed:
            if not agent:
                raise InvalidInput("the name of an allowed agent is empty")

    @property
    def by(self) -> str:
        """How its changes are signed in the log: never like a person."""
        return f"mcp:{self.name}"

    @property
    def reaches_all(self) -> bool:
        return ANY in self.allowed

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents that it can reach; without those that `*` stands for."""
        return tuple(dict.fromkeys((self.name, *(a for a in self.allowed if a != ANY))))

    def reaches(self, agent: str) -> bool:
        return self.reaches_all or agent in self.agents


def check_name(name: str) -> str:
    """The name, or InvalidInput: it becomes part of the log."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not an agent name: use 1 to 100 letters, digits and . _ : @ ~ = + -, "
            "beginning with a letter or digit"
        )
    return name


def reachable(store: Store, who: Identity, task_id: str, agent: str | None = None) -> RunRow:
    """The task's row, or NoSuchRun, also if it belongs to another agent than the one that was named."""
    row = views.row_of(store, task_id)
    if not who.reaches(row.agent) or agent not in (None, row.agent):
        raise NoSuchRun(task_id)
    return row
