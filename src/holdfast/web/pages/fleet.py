"""Workers and what is due; schedules with their next times; what `holdfast doctor` finds."""

from __future__ import annotations

import itertools
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import Response

from holdfast import views
from holdfast.core import cron
from holdfast.doctor import examine
from holdfast.errors import HoldfastError
from holdfast.store.base import Schedule
from holdfast.views.fleet import fleet as read_fleet
from holdfast.web.auth import require
from holdfast.web.pages.render import page
from holdfast.web.pages.site import Site


async def fleet(site: Site, request: Request) -> Response:
    """Workers, leases, queues, schedules."""
    require(request, "fleet")
    found = await site.server.call(read_fleet)
    schedules = await site.server.call(lambda store: store.schedules.all())
    agents = await site.server.call(views.agents)
    coming = {s.id: next_times(s, 3) for s in schedules}
    return page(
        request,
        "fleet.html",
        fleet=found,
        schedules=schedules,
        agents=agents,
        coming=coming,
        tally=await site.tally(),
    )


def next_times(schedule: Schedule, many: int) -> list[int]:
    """The next times of a schedule, in microseconds."""
    try:
        times = cron.following(cron.parse(schedule.cron), ZoneInfo(schedule.zone), schedule.next_at)
        return [schedule.next_at, *itertools.islice(times, many - 1)]
    except (HoldfastError, ValueError, LookupError, OSError):
        # A zone that this machine does not know.
        return [schedule.next_at]


async def doctor(site: Site, request: Request) -> Response:
    """The findings; every run is checked only when asked for, as that reads every log."""
    require(request, "doctor")
    if request.query_params.get("all") == "1":
        found = await site.server.call(examine)
        return page(request, "doctor.html", findings=found.findings, found=found)
    findings = await site.server.call(lambda store: store.examine())
    return page(request, "doctor.html", findings=findings, found=None)
