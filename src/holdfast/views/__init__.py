"""What people may see of a run. Reads only, works without the agent's code.

`hf.get`, `hf.at`, `hf.diff`, `hf.events`, `hf.verify` and the interfaces are these functions.
"""

from typing import TYPE_CHECKING, Final

from holdfast.lazy import on_first_use

if TYPE_CHECKING:
    from holdfast.core.plain import to_plain
    from holdfast.store.pages import Through
    from holdfast.views.agent_info import AgentInfo, agents
    from holdfast.views.inbox_page import InboxItem, InboxPage, inbox
    from holdfast.views.listing import (
        SHOWN_STATUSES,
        RunPage,
        Watch,
        every_run,
        runs,
        shown,
        shown_status,
        unwatched,
    )
    from holdfast.views.log import Verification, check, events, records, row_of, verify
    from holdfast.views.open_requests import OpenRequest, family, next_steps, requests, used_budget
    from holdfast.views.outcomes import Outcome, outcome
    from holdfast.views.positions import ENDED, Position, position, ranges
    from holdfast.views.search_result import SearchResult, search
    from holdfast.views.state import (
        artifact,
        at,
        brief,
        changes,
        diff,
        folded,
        get,
        known,
        pending,
        with_dialogue,
        with_owner,
    )
    from holdfast.views.stored_items import item, item_event, item_events, items
    from holdfast.views.timelines import Moment, timeline
    from holdfast.views.values import Change, compare, value

__all__ = [
    "ENDED",
    "SHOWN_STATUSES",
    "AgentInfo",
    "Change",
    "InboxItem",
    "InboxPage",
    "Moment",
    "OpenRequest",
    "Outcome",
    "Position",
    "RunPage",
    "SearchResult",
    "Through",
    "Verification",
    "Watch",
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

_HOMES: Final = {
    "holdfast.core.plain": ("to_plain",),
    "holdfast.store.pages": ("Through",),
    "holdfast.views.agent_info": ("AgentInfo", "agents"),
    "holdfast.views.inbox_page": ("InboxItem", "InboxPage", "inbox"),
    "holdfast.views.stored_items": ("item", "item_event", "item_events", "items"),
    "holdfast.views.listing": (
        "SHOWN_STATUSES",
        "RunPage",
        "Watch",
        "every_run",
        "runs",
        "shown",
        "shown_status",
        "unwatched",
    ),
    "holdfast.views.log": ("Verification", "check", "events", "records", "row_of", "verify"),
    "holdfast.views.open_requests": (
        "OpenRequest",
        "family",
        "next_steps",
        "requests",
        "used_budget",
    ),
    "holdfast.views.outcomes": ("Outcome", "outcome"),
    "holdfast.views.positions": ("ENDED", "Position", "position", "ranges"),
    "holdfast.views.search_result": ("SearchResult", "search"),
    "holdfast.views.state": (
        "artifact",
        "at",
        "brief",
        "changes",
        "diff",
        "folded",
        "get",
        "known",
        "pending",
        "with_dialogue",
        "with_owner",
    ),
    "holdfast.views.timelines": ("Moment", "timeline"),
    "holdfast.views.values": ("Change", "compare", "value"),
}

if not TYPE_CHECKING:  # a type checker should see the imports above, and complain of any other name
    __getattr__ = on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
