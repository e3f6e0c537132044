'''Specs next to an agent: Gherkin text in `SPEC = """…"""` or in a `.feature` file, read and played.

The parser is Cucumber's own (`gherkin-official`; `outlines.py` says when it is not needed), so Background, Rule, Scenario
Outline, tables and doc strings mean what they mean everywhere. An unknown sentence is an error before anything runs,
with its line and the sentences that come closest.
'''

from __future__ import annotations

import ast
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from holdfast import views
from holdfast.core.events import ErrorInfo
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.runtime.declare.agent_spec import AgentSpec
from holdfast.runtime.declare.call_spec import CallSpec
from holdfast.runtime.declare.mocks import Mocks
from holdfast.runtime.declare.specs import agent_spec, spec_of
from holdfast.testing.builtin_steps import builtin_sentences
from holdfast.testing.outlines import Outline, StepLine, outlines_of, plain_outlines
from holdfast.testing.scenario import (
    RUN_ID,
    Executor,
    ScenarioAction,
    ScenarioRun,
    ScenarioSetup,
    execute_here,
)
from holdfast.testing.step_matcher import (
    Outcome,
    RecordedCall,
    StepPattern,
    UnmetExpectation,
    json_or_text,
    sentences_in,
)

CLOSE_ONES: Final = 3
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a private folder is made in it


class SpecError(InvalidInput):
    """A spec that cannot be run: bad Gherkin, an unknown sentence, an unknown tool."""


class SpecLine(Struct, frozen=True):
    """One sentence of a scenario: its place, its text, and what it does."""

    place: str
    keyword: str
    text: str
    sentence: StepPattern
    values: dict[str, Any]

    def __call__(self, on: ScenarioSetup | Outcome) -> None:
        self.sentence.fn(on, **self.values)


class Scenario(Struct, frozen=True):
    """One scenario, ready to run."""

    name: str
    place: str
    lines: tuple[SpecLine, ...]

    @property
    def setup(self) -> list[SpecLine]:
        return [line for line in self.lines if line.sentence.on == "setup"]

    @property
    def checks(self) -> list[SpecLine]:
        return [line for line in self.lines if line.sentence.on == "outcome"]


class SpecContext(Struct, frozen=True):
    """What the sentences refer to: the agents of a file, the chosen one, and all names of the file."""

    agents: Mapping[str, Callable[..., Any]]
    chosen: Callable[..., Any] | None
    names: dict[str, Any]
    mocks: Mocks = field(default_factory=dict)
    strict: bool = False
    input: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of every scenario that does not give its own."""

    @property
    def tools(self) -> frozenset[str]:
        """The steps and tools that the file (and what it imports by name) declares."""
        specs = [spec_of(value) for value in self.names.values()]
        return frozenset(spec.name for spec in specs if isinstance(spec, CallSpec))


# ── reading ──────────────────────────────────────────────────────────────────────────────────


def spec_in(file: Path, names: Mapping[str, Any]) -> tuple[str, int] | None:
    """The text of SPEC in a loaded Python file, and the line of the file where it starts."""
    text = names.get("SPEC")
    if text is None:
        return None
    if not isinstance(text, str):
        raise SpecError(f"{file}: SPEC must be Gherkin text, not {type(text).__name__}")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == "SPEC" for t in targets):
            assert isinstance(node, ast.Assign)
            begins = file.read_text(encoding="utf-8").splitlines()[node.value.lineno - 1].rstrip()
            return text, node.value.lineno + (begins.endswith("\\"))
    return text, 1


def read_spec(
    text: str, file: str, patterns: list[StepPattern], *, first_line: int = 1
) -> list[Scenario]:
    """The scenarios of a Gherkin text, outlines expanded, every sentence understood."""
    scenarios, unknown = [], []
    for outline in _outlines(text, file, patterns, first_line):
        found = []
        for step in outline.steps:
            place = f"{file}:{step.line + first_line - 1}"
            try:
                found.append(_line(place, step, patterns))
            except SpecError as error:
                unknown.append(str(error))
        place = f"{file}:{outline.line + first_line - 1}"
        if not found and not unknown:
            raise SpecError(f"{place}: scenario {outline.name!r} has no steps")
        scenario = Scenario(outline.name, place, tuple(found))
        _check_order(scenario)
        scenarios.append(scenario)
    if unknown:
        raise SpecError("\n".join(dict.fromkeys(unknown)))
    return scenarios


def _outlines(text: str, file: str, patterns: list[StepPattern], first_line: int) -> list[Outline]:
    plain = plain_outlines(text)
    if plain is not None:
        return plain
    parsed = _parsed(text, file, first_line)
    _check_no_lost_sentence(parsed, patterns, file, first_line)
    return outlines_of(parsed)


def _parsed(text: str, file: str, first_line: int) -> Any:
    try:
        from gherkin.errors import CompositeParserException, ParserException
        from gherkin.parser import Parser
        from gherkin.token_scanner import TokenScanner
    except ModuleNotFoundError:
        raise SpecError(
            "a spec in Gherkin needs the package gherkin-official: pip install 'holdfast[test]'"
        ) from None
    try:
        return Parser().parse(TokenScanner(text))
    except CompositeParserException as errors:
        said = [_parser_error(file, text, first_line, error) for error in errors.errors]
        raise SpecError("\n".join(said)) from None
    except ParserException as error:
        raise SpecError(_parser_error(file, text, first_line, error)) from None


def _parser_error(file: str, text: str, first_line: int, error: Any) -> str:
    line = error.location["line"]
    before = text.splitlines()[: line - 1]
    has_feature = any(x.lstrip().startswith("Feature:") for x in before)
    hint = "" if has_feature else "; a spec starts with `Feature: …`, then `Scenario: …`"
    said = str(error).partition(": ")[2]
    return f"{file}:{line + first_line - 1}: not Gherkin: {said}{hint}"


def _check_no_lost_sentence(
    parsed: Any, patterns: list[StepPattern], file: str, first_line: int
) -> None:
    """A misspelt keyword below a headline makes Gherkin take a sentence for prose, which is never intended."""
    for node in _nodes(parsed):
        for offset, said in enumerate(str(node.get("description") or "").splitlines(), 1):
            word, _, rest = said.strip().partition(" ")
            if any(sentence.match(rest) is not None for sentence in patterns):
                line = node["location"]["line"] + offset + first_line - 1
                raise SpecError(
                    f"{file}:{line}: {word!r} does not start a sentence; use Given, When, Then, And, But or *"
                )


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "description" in node and "location" in node:
            yield node
        for value in node.values():
            yield from _nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from _nodes(value)


def _line(place: str, step: StepLine, patterns: list[StepPattern]) -> SpecLine:
    said, block = step.text, _block(step.argument)
    # The most exact one that fits is meant; the patterns of the others are not even compiled.
    candidates = sorted(filter(lambda x: x.may_match(said), patterns), key=lambda x: -x.weight)
    fits = ((x, values) for x in candidates if (values := x.match(said)) is not None)
    sentence, values = next(fits, (None, {}))
    if sentence is None:
        raise SpecError(f"{place}: {_unknown(said, patterns)}")
    if sentence.has_block:
        if block is None:
            raise SpecError(f"{place}: {said!r} needs a table or a text in triple quotes below it")
        values["block"] = block
    elif block is not None:
        raise SpecError(f"{place}: {said!r} takes no table or text below it")
    return SpecLine(place, step.keyword, said, sentence, values)


def _block(argument: Any) -> Any:
    """What is below a sentence: a table as rows of texts, a doc string as JSON or text."""
    if argument is None:
        return None
    if "docString" in argument:
        return json_or_text(argument["docString"]["content"])
    return [[cell["value"] for cell in row["cells"]] for row in argument["dataTable"]["rows"]]


def _unknown(text: str, patterns: list[StepPattern]) -> str:
    texts = {_as_said(sentence.text, text): sentence.text for sentence in patterns}
    from difflib import get_close_matches

    close = get_close_matches(text, texts, CLOSE_ONES, 0.5)
    hint = "".join(f"\n    {texts[one]}" for one in close)
    if not hint:
        return f"unknown sentence: {text}\n  the known ones:" + "".join(
            f"\n    {x}" for x in texts.values()
        )
    return f"unknown sentence: {text}\n  the closest known ones:{hint}"


def _as_said(pattern: str, sentence: str) -> str:
    """A pattern with one of its alternatives, if possible one that was said: `the procedure/agent/run runs` is
    not like `the agent rns`, but `the agent runs` is."""

    def chosen(alternatives: re.Match[str]) -> str:
        words = alternatives[0].split("/")
        return next((word for word in words if word in sentence.split()), words[0])

    return re.sub(r"[\w-]+(?:/[\w-]+)+", chosen, pattern)


def _check_order(scenario: Scenario) -> None:
    asked: SpecLine | None = None
    for line in scenario.lines:
        if line.sentence.on == "outcome":
            asked = line
        elif asked is not None:
            raise SpecError(
                f"{line.place}: {line.text!r} comes after {asked.text!r}; expectations come when "
                "everything has happened: make it a separate scenario"
            )


# ── playing ──────────────────────────────────────────────────────────────────────────────────


class ScenarioResult(Struct, frozen=True):
    """What came of a scenario: passed, or the sentence that failed and why."""

    scenario: Scenario
    outcome: Outcome | None
    failed: SpecLine | None = None
    expected: str = ""
    actual: str = ""
    problem: str = ""

    @property
    def ok(self) -> bool:
        return self.failed is None and not self.problem


def known_sentences(names: Mapping[str, Any]) -> list[StepPattern]:
    """The built-in sentences and those of the agent's file."""
    return [*sentences_in(names), *builtin_sentences()]


def setup_of(scenario: Scenario, context: SpecContext) -> ScenarioSetup:
    """What the scenario's Given and When say, as a setup."""
    agent = context.chosen
    setup = ScenarioSetup(
        agent=agent or _no_agent,
        input=dict(context.input),
        mocks=dict(context.mocks),
        strict=context.strict,
        module=context.names,
    )
    for line in scenario.setup:
        try:
            line(setup)
        except HoldfastError as error:
            raise SpecError(f"{line.place}: {error}") from error
    if agent is None:
        raise SpecError(
            f"{scenario.place}: the file has several agents; choose one as FILE:agent: {', '.join(context.agents)}"
        )
    _check_input(scenario, setup)
    _check_mocks(scenario, setup, context)
    return setup


def _no_agent() -> None:
    raise AssertionError("no agent was chosen")


def _check_input(scenario: Scenario, setup: ScenarioSetup) -> None:
    spec = agent_spec(setup.agent)
    try:
        spec.encode_input((), setup.input)
        spec.decode_input(spec.encode_input((), setup.input)[0])
    except HoldfastError as error:
        raise SpecError(f"{scenario.place}: {error}") from error


def _check_mocks(scenario: Scenario, setup: ScenarioSetup, context: SpecContext) -> None:
    """A mock of something that is not there is a misspelt name, and the real thing would run."""
    plain = {name for name, value in context.names.items() if callable(value)}
    known = context.tools | plain
    for name in setup.mocks:
        if name not in known and name not in context.tools and not _may_be_elsewhere(name, context):
            from difflib import get_close_matches

            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise SpecError(
                f"{scenario.place}: {name!r} is mocked, but there is no step, tool or function of that "
                f"name{hint}. The file has {', '.join(sorted(context.tools)) or 'no tools'}"
            )


def _may_be_elsewhere(name: str, context: SpecContext) -> bool:
    """The undo of a known tool, or a tool of an agent that was imported or is not a sync function."""
    if name.startswith("undo ") and name[5:] in context.tools:
        return True
    own = context.names.get("__name__")
    return any(
        not isinstance(spec_of(agent), AgentSpec) or agent_spec(agent).fn.__module__ != own
        for agent in context.agents.values()
    )


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """A folder for one performance, gone afterwards. In memory where there is such a place: nothing in
    it must outlive the machine, only processes."""
    folder = _new_folder()
    try:
        yield folder
    finally:
        _remove(folder)


def _new_folder() -> Path:
    if os.access(_MEMORY, os.W_OK | os.X_OK):
        folder = _MEMORY / f"holdfast-test-{uuid.uuid4().hex}"
        folder.mkdir(mode=0o700)
        return folder
    import tempfile  # here: it loads all kinds of compression, which takes longer than a scenario

    return Path(tempfile.mkdtemp(prefix="holdfast-test-"))


def _remove(folder: Path) -> None:
    try:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    except OSError:  # it has folders, or a process that is being killed still writes to it
        import shutil  # here, as `tempfile` above

        shutil.rmtree(folder, ignore_errors=True)


def run_scenario(
    scenario: Scenario, context: SpecContext, execute: Executor = execute_here
) -> ScenarioResult:
    """Execute a scenario once in its own folder, and check its expectations."""
    try:
        setup = setup_of(scenario, context)
    except SpecError as error:
        return ScenarioResult(scenario, None, problem=str(error))
    with fresh_folder() as folder:
        stage = ScenarioRun(folder, setup, execute)
        try:
            stage.perform()
            outcome = outcome_of(stage, context.tools)
        except HoldfastError as error:
            return ScenarioResult(scenario, None, problem=f"{scenario.place}: {error}")
        finally:
            stage.close()
    if stage.ends[-1].says == "MockMissing":
        return ScenarioResult(
            scenario, outcome, problem=f"{scenario.place}: {stage.ends[-1].message}"
        )
    return judge(scenario, outcome)


def judge(scenario: Scenario, outcome: Outcome) -> ScenarioResult:
    """Ask every Then."""
    for line in scenario.checks:
        try:
            line(outcome)
        except UnmetExpectation as unmet:
            return ScenarioResult(scenario, outcome, line, unmet.expected, unmet.actual)
        except AssertionError as error:
            return ScenarioResult(
                scenario, outcome, line, line.text, str(error) or "that was not the case"
            )
        except HoldfastError as error:
            return ScenarioResult(scenario, outcome, line, problem=f"{line.place}: {error}")
    return ScenarioResult(scenario, outcome)


def outcome_of(stage: ScenarioRun, tools: frozenset[str] = frozenset()) -> Outcome:
    """The run as it is at the end of a performance."""
    store = stage.sandbox.store()
    try:
        run = views.get(store, RUN_ID)

        def whole(value: Any) -> Any:
            return views.to_plain(views.value(store, RUN_ID, value))

        calls = tuple(
            RecordedCall(
                call.step,
                call.name,
                call.status,
                whole(call.args) or {},
                whole(call.result),
                max(1, len(call.attempts)),
                _error(call.error),
                call.error.type if call.error else "",
            )
            for call in run.calls
        )
        return Outcome(
            run=run,
            status=run.status,
            result=whole(run.result),
            state=whole(dict(run.state)),
            calls=calls,
            decisions={d.name: (whole(d.choice), d.why) for d in run.decisions},
            error=_error(run.failure.error) if run.failure and run.status == "failed" else "",
            waiting_for=run.waiting_for if run.status == "waiting" else "",
            ended=stage.ends[-1],
            known=tools | set(stage.setup.mocks) | {c.name for c in run.calls},
        )
    finally:
        store.close()


def _error(error: ErrorInfo | None) -> str:
    return "" if error is None else f"{error.type}: {error.message}"


__all__ = [
    "Scenario",
    "ScenarioAction",
    "ScenarioResult",
    "SpecContext",
    "SpecError",
    "SpecLine",
    "fresh_folder",
    "judge",
    "known_sentences",
    "outcome_of",
    "read_spec",
    "run_scenario",
    "setup_of",
    "spec_in",
]
