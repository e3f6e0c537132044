"""For the small process (`slim.py`): let the crash explorer loose on the scenarios of a `.tac` file."""

from __future__ import annotations

from typing import Any

from holdfast.cli.test import found
from holdfast.testing.crash import explore
from holdfast.testing.spec import judge, play_of


def explored(path: str) -> list[dict[str, Any]]:
    """Of each scenario, what the explorer reports when the process is killed at every boundary."""
    file = found(path, mock=True)
    reports = []
    for scenario in file.scenarios:

        def check(outcome: Any, scenario: Any = scenario) -> str:
            verdict = judge(scenario, outcome)
            return "" if verdict.ok else f"{verdict.failed}: {verdict.actual}"

        report = explore(play_of(scenario, file.cast), check=check, tools=file.cast.tools)
        reports.append({"ok": report.ok, "boundaries": report.boundaries, "report": str(report)})
    return reports
