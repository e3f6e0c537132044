"""For the small process (`slim.py`): let the crash explorer loose on the scenarios of a `.tac` file."""

from __future__ import annotations

from typing import Any

from holdfast.cli.test import find_tests
from holdfast.testing.crash import explore
from holdfast.testing.spec import judge, setup_of


def explored(path: str) -> list[dict[str, Any]]:
    """Of each scenario, what the explorer reports when the process is killed at every boundary."""
    file = find_tests(path, mock=True)
    reports = []
    for scenario in file.scenarios:

        def check(outcome: Any, scenario: Any = scenario) -> str:
            verdict = judge(scenario, outcome)
            return "" if verdict.ok else f"{verdict.failed}: {verdict.actual}"

        report = explore(setup_of(scenario, file.context), check=check, tools=file.context.tools)
        reports.append({"ok": report.ok, "boundaries": report.boundaries, "report": str(report)})
    return reports
