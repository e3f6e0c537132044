"""What people may see of a run. Reads only, works without the agent's code.

`hf.get`, `hf.at`, `hf.diff`, `hf.events`, `hf.verify` and the interfaces are these functions.
"""

from holdfast.views.agents import AgentInfo, agents
from holdfast.views.log import Through, Verdict, events, records, row_of, verify
from holdfast.views.position import ENDED, Position, position, ranges
from holdfast.views.state import (
    artifact,
    at,
    changes,
    diff,
    folded,
    get,
    pending,
    standing,
    with_owner,
)
from holdfast.views.values import Change, compare, to_plain, value

__all__ = [
    "ENDED",
    "AgentInfo",
    "Change",
    "Position",
    "Through",
    "Verdict",
    "agents",
    "artifact",
    "at",
    "changes",
    "compare",
    "diff",
    "events",
    "folded",
    "get",
    "pending",
    "position",
    "ranges",
    "records",
    "row_of",
    "standing",
    "to_plain",
    "value",
    "verify",
    "with_owner",
]
