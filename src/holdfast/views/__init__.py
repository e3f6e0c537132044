"""What people may see of a run. Reads only, works without the agent's code.

`hf.get`, `hf.at`, `hf.diff`, `hf.events`, `hf.verify` and the interfaces are these functions.
"""

from typing import TYPE_CHECKING, Final

from holdfast.lazy import on_first_use

if TYPE_CHECKING:
    from holdfast.core.state import to_plain
    from holdfast.store.pages import Through
    from holdfast.views.fleet import AgentInfo, agents
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
    from holdfast.views.open_requests import (
        InboxItem,
        InboxPage,
        RequestOfRun,
        family,
        inbox,
        next_steps,
        requests,
        used_budget,
    )
    from holdfast.views.search_result import SearchResult, search
    from holdfast.views.state import (
        ENDED,
        Change,
        Outcome,
        Position,
        artifact,
        at,
        brief,
        changes,
        compare,
        diff,
        folded,
        get,
        knowledge_of,
        outcome,
        pending,
        position,
        ranges,
        value,
        with_dialogue,
        with_owner,
    )
    from holdfast.views.stored_items import item, item_event, item_events, items

__all__ = [
    "ENDED",
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
    "knowledge_of",
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
    "holdfast.core.state": ("to_plain",),
    "holdfast.store.pages": ("Through",),
    "holdfast.views.fleet": ("AgentInfo", "agents"),
    "holdfast.views.open_requests": (
        "InboxItem",
        "InboxPage",
        "RequestOfRun",
        "family",
        "inbox",
        "next_steps",
        "requests",
        "used_budget",
    ),
    "holdfast.views.listing": (
        "SHOWN_STATUSES",
        "ProgressHook",
        "RunPage",
        "every_run",
        "runs",
        "shown",
        "shown_status",
        "unwatched",
    ),
    "holdfast.views.log": (
        "Moment",
        "Verification",
        "check",
        "events",
        "records",
        "row_of",
        "timeline",
        "verify",
    ),
    "holdfast.views.state": (
        "ENDED",
        "Change",
        "Outcome",
        "Position",
        "artifact",
        "at",
        "brief",
        "changes",
        "compare",
        "diff",
        "folded",
        "get",
        "knowledge_of",
        "outcome",
        "pending",
        "position",
        "ranges",
        "value",
        "with_dialogue",
        "with_owner",
    ),
    "holdfast.views.search_result": ("SearchResult", "search"),
    "holdfast.views.stored_items": ("item", "item_event", "item_events", "items"),
}

if not TYPE_CHECKING:  # a type checker should see the imports above, and complain of any other name
    __getattr__ = on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
