"""`holdfast test`: run the specs next to an agent, run its pytest functions, crash it everywhere.

What a spec means is `holdfast.testing`; here its files are found and its verdicts printed.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.cli import text
from holdfast.cli.common import json_option
from holdfast.cli.load import LUA, AgentFile, load, parameters
from holdfast.cli.lua_specs import lua_scenarios
from holdfast.errors import InvalidInput, NotFound
from holdfast.runtime.declare.mocks import mocks_of
from holdfast.runtime.declare.specs import agent_spec
from holdfast.testing.spec import (
    Scenario,
    ScenarioResult,
    SpecContext,
    judge,
    known_sentences,
    read_spec,
    run_scenario,
    setup_of,
    spec_in,
)
from holdfast.testing.step_matcher import Outcome

if TYPE_CHECKING:  # loaded with --crash-everywhere
    from holdfast.testing.crash import CrashReport, Lives
    from holdfast.testing.crash_faults import Fault
    from holdfast.testing.fork_server import ForkServers


class TestTarget(Struct, frozen=True):
    """What one file has to test."""

    given: str
    """FILE, FILE:agent or FILE.feature, as it was typed."""
    target: str
    context: SpecContext
    scenarios: list[Scenario]
    test_files: list[Path]
    params: tuple[str, ...] = ()
    """NAME=VALUE, as they were typed."""


class TestCounts(Struct):
    """How many passed and failed, over all targets."""

    as_json: bool
    scenarios: list[dict[str, Any]] = field(default_factory=list)
    tests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return sum(not one["ok"] for one in (*self.scenarios, *self.tests))


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="FILE[:AGENT]…")
@click.option(
    "--mock",
    is_flag=True,
    help="Use MOCKS, and contact nothing: a tool or model without a mock is an error.",
)
@click.option("--crash-everywhere", is_flag=True, help="Also kill each scenario at every boundary.")
@click.option(
    "--real", is_flag=True, help="With --crash-everywhere: allow real calls of tools without mocks."
)
@click.option(
    "-k",
    "--scenario",
    "only",
    default="",
    metavar="TEXT",
    help="Only scenarios and tests whose name contains TEXT.",
)
@click.option(
    "--param",
    "-p",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the agent, for scenarios that do not give it.",
)
@json_option
def test(
    targets: tuple[str, ...],
    mock: bool,
    crash_everywhere: bool,
    real: bool,
    only: str,
    params: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the specs of an agent: SPEC in its file, a .feature file of the same name, test_ functions.

    Each scenario runs on its own temporary store. Timers and retry delays are
    skipped. Without --mock, tools that the scenario does not mock are executed for real.
    """
    if crash_everywhere and not mock and not real:
        raise click.UsageError(
            "--crash-everywhere runs each scenario many times: use --mock, or --real if the tools "
            "may really be called that often (a sandbox, a test account)"
        )
    tally = TestCounts(as_json)
    # What the user's code prints is not our data.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        for file in [find_tests(target, mock, params) for target in targets]:
            _test_file(file, tally, only, crash=crash_everywhere)
    _end(tally, only)


# ── finding ──────────────────────────────────────────────────────────────────────────────────


def find_tests(target: str, mock: bool, params: Sequence[str] = ()) -> TestTarget:
    """What there is to test: scenarios, and files with test functions."""
    file = _find_tests(target, mock)
    if not params:
        return file
    if file.context.chosen is None:
        raise click.UsageError(f"--param needs one agent; name it: {target}:AGENT")
    spec = agent_spec(file.context.chosen)
    given = parameters(spec.name, spec.params.schema, params, partial=True)
    return replace(file, context=replace(file.context, input=given), params=tuple(params))


def _find_tests(target: str, mock: bool) -> TestTarget:
    given, file = target, Path(target)
    feature: Path | None = None
    if file.suffix == ".feature":
        feature, target = file, str(file.with_suffix(".py"))
        if not feature.is_file():
            raise NotFound(f"file {feature} not found")
        if not Path(target).is_file():
            raise NotFound(f"{feature} belongs to an agent in {target}, which does not exist")
    loaded = load(target)
    path = Path(loaded.file)
    names = vars(loaded.module)
    if path.suffix == LUA:
        return TestTarget(given, target, *lua_scenarios(loaded, mock), [])
    context = SpecContext(
        loaded.agents,
        _chosen(loaded),
        names,
        mocks_of(names.get("MOCKS", {})) if mock else {},
        strict=mock,
    )
    known = known_sentences(names)
    scenarios: list[Scenario] = []
    inside = None if feature else spec_in(path, names)
    if inside is not None:
        scenarios += read_spec(inside[0], loaded.file, known, first_line=inside[1])
    beside = feature or path.with_suffix(".feature")
    if beside.is_file():
        scenarios += read_spec(_utf8(beside), str(beside), known)
    tests = [] if feature else _test_files(path, names, loaded.module.__name__)
    if not scenarios and not tests:
        raise InvalidInput(
            f'{target} has nothing to test: add SPEC = """Feature: …""", a file {beside.name} next to it, '
            "or functions named test_…"
        )
    return TestTarget(given, target, context, scenarios, tests)


def _utf8(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{file} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None


def _chosen(loaded: AgentFile) -> Callable[..., Any] | None:
    try:
        return loaded.chosen()
    except InvalidInput:
        return None  # said when a scenario needs to know


def _test_files(path: Path, names: dict[str, Any], module: str) -> list[Path]:
    """The file itself if it has test functions, and test_NAME.py next to it."""
    own = [
        name
        for name, value in names.items()
        if name.startswith(("test_", "Test"))
        and getattr(value, "__module__", "") == module
        and (inspect.isfunction(value) or inspect.isclass(value))
    ]
    beside = path.with_name(f"test_{path.name}")
    return [*([path] if own else []), *([beside] if beside.is_file() else [])]


# ── playing ──────────────────────────────────────────────────────────────────────────────────


def _test_file(file: TestTarget, tally: TestCounts, only: str, *, crash: bool) -> None:
    wanted = [(n, s) for n, s in enumerate(file.scenarios) if only.lower() in s.name.lower()]
    if not tally.as_json and (wanted or file.test_files):
        click.secho(text.visible(file.target), bold=True)
    if wanted and not file.context.strict and not tally.as_json:
        click.echo(
            "  tools are executed for real, unless a scenario mocks them (--mock uses MOCKS)"
        )
    with _fork_servers(file) if crash else contextlib.nullcontext() as servers:
        for number, scenario in wanted:
            verdict = run_scenario(scenario, file.context)
            report = None
            if servers is not None and verdict.ok:
                report = _crashed(scenario, file.context, tally, servers.lives(number))
            tally.scenarios.append(_verdict_data(verdict, report))
            if not tally.as_json:
                _print(verdict, report)
    if file.test_files:
        _pytest(file.test_files, tally, only)


def _fork_servers(file: TestTarget) -> ForkServers:
    from holdfast.testing.fork_server import ForkServers

    return ForkServers(partial(_fork_server_command, file))


def _fork_server_command(file: TestTarget, fd: int) -> list[str]:
    mocked = "mock" if file.context.strict else "real"
    return [
        sys.executable,
        "-m",
        "holdfast.cli.fork_server",
        str(fd),
        file.given,
        mocked,
        *file.params,
    ]


def _crashed(
    scenario: Scenario, context: SpecContext, tally: TestCounts, lives: Lives
) -> CrashReport:
    from holdfast.testing.crash import explore

    def check(outcome: Outcome) -> str:
        verdict = judge(scenario, outcome)
        if verdict.ok:
            return ""
        said = verdict.failed.text if verdict.failed is not None else scenario.name
        why = verdict.problem or f"expected {verdict.expected}, but it was {verdict.actual}"
        return f"“{said}” failed: {why}"

    shows = not tally.as_json and sys.stderr.isatty()

    def progress(done: int, total: int) -> None:
        if shows:
            click.echo(f"\r  {scenario.name}: crash {done} of {total} ", nl=False, err=True)

    report = explore(
        setup_of(scenario, context),
        check=check,
        tools=context.tools,
        progress=progress,
        lives=lives,
    )
    if shows:
        click.echo("\r\033[K", nl=False, err=True)
    return report


def _print(verdict: ScenarioResult, report: CrashReport | None) -> None:
    ok = verdict.ok and (report is None or report.ok)
    mark = click.style("passed", fg="green") if ok else click.style("FAILED", fg="red")
    click.echo(
        f"  {mark}  {text.visible(verdict.scenario.name)}"
        + ("" if ok else f"  ({text.visible(verdict.scenario.place)})")
    )
    if verdict.problem:
        _indented(verdict.problem)
    elif verdict.failed is not None:
        line = verdict.failed
        _indented(
            f"{line.keyword} {line.text}   ({line.place})\n  expected: {verdict.expected}\n  actual:   {verdict.actual}"
        )
    if not verdict.ok and verdict.outcome is not None:
        _what_happened(verdict.outcome)
    if report is not None:
        for line_ in report.lines():
            _indented(line_)


def _indented(output: str) -> None:
    for line in output.splitlines():
        click.echo(f"          {text.visible(line)}")


def _what_happened(outcome: Outcome) -> None:
    from holdfast import views

    stage = f", stage {outcome.run.stage}" if outcome.run.stage else ""
    said = outcome.error or (f"waiting for {outcome.waiting_for}" if outcome.waiting_for else "")
    _indented(
        f"what happened: {outcome.status}; {views.position(outcome.run)}{stage}"
        + (f"; {said}" if said else "")
    )
    for call in outcome.calls:
        result = call.error or f"→ {text.compact(call.result)}"
        _indented(
            f"  step {call.step} {call.name}({text.one_line(call.args)}) {call.status} {result}"
        )


# ── pytest functions ─────────────────────────────────────────────────────────────────────────


def _pytest(files: list[Path], tally: TestCounts, only: str) -> None:
    """Hand test functions over to pytest, in its own process."""
    import subprocess
    import tempfile
    from importlib.util import find_spec

    if find_spec("pytest") is None:
        raise InvalidInput(
            f"{files[0]} has test functions, and pytest is not installed: pip install pytest"
        )
    with tempfile.TemporaryDirectory(prefix="holdfast-test-") as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            *map(str, files),
        ]
        command += ["-k", only] if only else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - pytest itself
        if not report.exists():
            raise InvalidInput(f"pytest could not run {files[0]}:\n{done.stdout}{done.stderr}")
        found = _cases(report)
    tally.tests += found
    if tally.as_json:
        return
    for one in found:
        mark = click.style("passed", fg="green") if one["ok"] else click.style("FAILED", fg="red")
        click.echo(f"  {mark}  {text.visible(one['name'])}")
        if not one["ok"]:
            _indented(one["message"])


def _cases(report: Path) -> list[dict[str, Any]]:
    from xml.etree import ElementTree

    found = []
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - written by pytest, a moment ago
        bad = [part for part in case if part.tag in ("failure", "error")]
        found.append(
            {
                "name": case.get("name", ""),
                "ok": not bad,
                "message": "\n".join(part.text or part.get("message") or "" for part in bad),
            }
        )
    return found


# ── saying ───────────────────────────────────────────────────────────────────────────────────


def _verdict_data(verdict: ScenarioResult, report: CrashReport | None) -> dict[str, Any]:
    failed, outcome = verdict.failed, verdict.outcome
    return {
        "name": verdict.scenario.name,
        "place": verdict.scenario.place,
        "ok": verdict.ok and (report is None or report.ok),
        "failed": None
        if failed is None
        else {
            "sentence": failed.text,
            "place": failed.place,
            "expected": verdict.expected,
            "actual": verdict.actual,
        },
        "problem": verdict.problem,
        "run": None
        if outcome is None
        else {
            "status": outcome.status,
            "stage": outcome.run.stage,
            "state": outcome.state,
            "output": outcome.result,
            "error": outcome.error,
            "waiting_for": outcome.waiting_for,
            "calls": [
                {
                    "step": c.step,
                    "name": c.name,
                    "status": c.status,
                    "args": c.args,
                    "result": c.result,
                    "attempts": c.attempts,
                    "error": c.error,
                }
                for c in outcome.calls
            ],
        },
        "crashes": None
        if report is None
        else {
            "boundaries": report.boundaries,
            "ok": report.ok,
            "problem": report.problem,
            "faults": [_fault_data(fault) for fault in report.faults],
            "looks": [_fault_data(fault) for fault in report.looks],
        },
    }


def _fault_data(fault: Fault) -> dict[str, Any]:
    return {
        "kind": fault.kind,
        "says": fault.says,
        "at": fault.where,
        "declared": fault.declared,
        "killed": fault.killed,
        "remedy": fault.fix,
        "crashes": fault.crashes,
    }


def _end(tally: TestCounts, only: str) -> None:
    total = len(tally.scenarios) + len(tally.tests)
    if tally.as_json:
        click.echo(
            text.as_json(
                {
                    "ok": bool(total) and not tally.failed,
                    "passed": total - tally.failed,
                    "failed": tally.failed,
                    "scenarios": tally.scenarios,
                    "tests": tally.tests,
                }
            )
        )
    elif not total:
        click.echo(f"no scenario or test matches {text.visible(only)!r}", err=True)
    else:
        click.echo(f"{total - tally.failed} passed, {tally.failed} failed")
    if tally.failed or not total:
        raise click.exceptions.Exit(1)
