"""What people may see of a run. Reads only, works without the agent's code.

`hf.get`, `hf.at`, `hf.diff`, `hf.events`, `hf.verify` and the interfaces are these functions.
"""

from holdfast.core.state import to_plain
from holdfast.store.pages import Through
from holdfast.views.agents import AgentInfo, agents
from holdfast.views.inbox import InboxItem, InboxPage, inbox
from holdfast.views.items import item, item_event, item_events, items
from holdfast.views.listing import (
    SHOWN_STATUSES,
    ProgressHook,
    RunPage,
    every_run,
    runs,
    shown,
    shown_status,
    unwatched,
)
from holdfast.views.log import (
    Moment,
    Verification,
    check,
    events,
    records,
    row_of,
    timeline,
    verify,
)
from holdfast.views.next_steps import RequestOfRun, family, next_steps, requests, used_budget
from holdfast.views.outcome import Outcome, outcome
from holdfast.views.position import Position, position, ranges
from holdfast.views.search import SearchResult, search
from holdfast.views.state import (
    Change,
    artifact,
    at,
    brief,
    changes,
    compare,
    diff,
    folded,
    get,
    known,
    pending,
    value,
    with_dialogue,
    with_owner,
)

__all__ = [
    "SHOWN_STATUSES",
    "AgentInfo",
    "Change",
    "InboxItem",
    "InboxPage",
    "Moment",
    "Outcome",
    "Position",
    "ProgressHook",
    "RequestOfRun",
    "RunPage",
    "SearchResult",
    "Through",
    "Verification",
    "agents",
    "artifact",
    "at",
    "brief",
    "changes",
    "check",
    "compare",
    "diff",
    "events",
    "every_run",
    "family",
    "folded",
    "get",
    "inbox",
    "item",
    "item_event",
    "item_events",
    "items",
    "known",
    "next_steps",
    "outcome",
    "pending",
    "position",
    "ranges",
    "records",
    "requests",
    "row_of",
    "runs",
    "search",
    "shown",
    "shown_status",
    "timeline",
    "to_plain",
    "unwatched",
    "used_budget",
    "value",
    "verify",
    "with_dialogue",
    "with_owner",
]
