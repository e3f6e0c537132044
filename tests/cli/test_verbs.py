"""Every verb through the installed command, in a process of its own: the shape of its JSON, and what
it does with bad input (an unknown run, a wrong state, a wrong type, no store, a damaged run).

An error is an exit code, one line of JSON on stderr that says what to do, an empty stdout, and a store
in which not one row has changed.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.cli.verbs import VERBS
from support.shell import damage, damage_end, everything, real

# -- what --json looks like ----------------------------------------------------------------------


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Exactly these fields, of these types."""


class Error(Strict):
    error: str
    message: str


class Row(msgspec.Struct):
    """A run in a list; it may get more fields."""

    id: str
    agent: str
    status: str
    owner: str
    epoch: int
    created_at: int
    updated_at: int
    due_at: int | None
    waiting_for: str
    parent: str


class Page(Strict):
    runs: list[Row]
    next: int | None


class Position(Strict):
    step: int
    of: int | None
    name: str
    committed: str


class Trouble(msgspec.Struct):
    type: str
    message: str
    traceback: str


class Attempt(msgspec.Struct):
    number: int
    started_at: int
    ended_at: int | None
    error: Trouble | None
    retry_at: int | None


class Call(msgspec.Struct):
    step: int
    name: str
    status: str
    effect: str
    key: str
    args: dict[str, Any]
    result: Any
    attempts: list[Attempt]
    error: Trouble | None


class Decision(msgspec.Struct):
    name: str
    choice: Any
    why: str
    options: list[Any]


class Wait(msgspec.Struct):
    wait: str
    name: str
    show: Any
    options: list[str]
    since: int
    until: int | None


class Failure(msgspec.Struct):
    time: int
    step: int
    tool: str
    input: Any
    state: dict[str, Any]
    error: Trouble
    reason: str


class Shown(msgspec.Struct, rename={"goes_on": "continue"}):
    """The state of a run has more fields, and gets new ones; these are promised."""

    id: str
    agent: str
    status: str
    position: Position
    stage: str
    stages: list[str]
    input: dict[str, Any]
    result: Any
    state: dict[str, Any]
    waiting_for: str
    waits: list[Wait]
    calls: list[Call]
    decisions: list[Decision]
    failure: Failure | None
    owner: str
    goes_on: list[str]


class Started(Strict):
    run: str
    agent: str
    version: str
    status: str


class AgentInfo(Strict):
    name: str
    is_registered: bool
    version: str
    versions: list[str]
    registered_at: int | None
    description: str
    parameters: dict[str, Any]
    stages: list[str]


class Agents(Strict):
    agents: list[AgentInfo]


class Moment(Strict):
    seq: int
    time: int
    epoch: int
    what: str
    text: str


class Trace(Strict):
    run: str
    timeline: list[Moment]


class Event(Strict):
    seq: int
    time: int
    epoch: int
    kind: str
    hash: str
    data: dict[str, Any]


class Events(Strict):
    run: str
    events: list[Event]


class Change(Strict):
    path: str
    before: Any
    after: Any


class Diff(Strict, rename={"begin": "from", "end": "to"}):
    run: str
    begin: int
    end: int
    changes: list[Change]


class Verdict(Strict):
    run: str
    ok: bool
    events: int
    head: str
    problem: str


class Ran(Strict, rename={"goes_on": "continue"}):
    run: str
    status: str
    result: Any
    waiting_for: str
    waiting: list[dict[str, Any]]
    error: str
    goes_on: list[str]


class Cause(Strict):
    where: str
    recorded: str
    attempted: str


class Replayed(Strict):
    run: str
    steps: int
    reached_end: bool
    diverged: Cause | None


class Checked(Strict):
    run: str
    agent: str
    status: str
    verdict: str
    steps: int
    step: int | None
    where: str
    recorded: str
    attempted: str
    problem: str
    adds: bool


class CheckedAll(Strict):
    ok: bool
    checked: int
    counts: dict[str, int]
    runs: list[Checked]


class Played(Strict):
    ok: bool
    passed: int
    failed: int
    scenarios: list[dict[str, Any]]
    tests: list[dict[str, Any]]


class Validated(Strict):
    ok: bool
    problems: list[dict[str, Any]]


class Schedule(Strict):
    id: str
    agent: str
    cron: str
    zone: str
    input: dict[str, Any]
    priority: int
    catch_up: str
    created_at: int
    next_at: int
    last_at: int | None


class Schedules(Strict):
    schedules: list[Schedule]


class Unscheduled(Strict):
    id: str
    deleted: bool


class Executed(Strict):
    executed: int


class Did(Strict):
    run: str
    did: str
    status: str


class Forked(Strict):
    run: str
    forked_from: str
    step: int
    inherited_effects: list[str]


class Finding(Strict):
    name: str
    value: str
    ok: bool
    advice: str


class Hurt(Strict):
    run: str
    problem: str


class Kind(Strict):
    agent: str
    code_version: str
    due_at: int


class Examined(Strict):
    ok: bool
    findings: list[Finding]
    runs: int
    damaged: list[Hurt]
    overdue: list[Kind]


class Collected(Strict):
    deleted: list[str]
    dry_run: bool


class Bulk(Strict):
    verb: str
    dry_run: bool
    runs: list[str]
    skipped: dict[str, str]
    has_more: bool


class Exported(Strict):
    run: str
    file: str
    lines: int


class Imported(Strict):
    run: str
    status: str
    events: int


class Server(Strict):
    command: str
    args: list[str]


class Configured(Strict, rename={"servers": "mcpServers"}):
    servers: dict[str, Server]


class ReadyToServe(Strict):
    host: str
    port: int
    credentials: list[str]
    read_only: bool


class CredentialsListed(Strict):
    credentials: list[dict[str, Any]]


class Invites(Strict):
    asked_for: int
    made: int


class Demonstrated(Strict):
    folder: str
    run: str
    invites: Invites


# -- every verb ----------------------------------------------------------------------------------

NO_STORE_NEEDED = {
    "run",
    "worker",
    "schedule",
    "import",
    "demo",
    "test",
    "validate",
    "mcp",
    "serve",
    "token",
}
"""These make a store, have their own, or need none."""


@dataclass(frozen=True)
class Verb:
    """How a verb is called well and badly; `wrong_state` and `wrong_type` with a part of what it says."""

    good: str
    shape: type[msgspec.Struct]
    wrong_type: tuple[str, str]
    wrong_state: tuple[str, str] | None = None
    only_looks: bool = False
    exit_code: int = 0


CASES = {
    "run": Verb(
        "run agents.py:recap -p to=sam --id new",
        Ran,
        ("run agents.py:typed -p n=fast", "n='fast' is not int"),
        ("run agents.py:recap -p to=ann --id done", "exists with a different input"),
    ),
    "resume": Verb(
        "resume agents.py failed",
        Ran,
        ("resume agents.py failed --lease soon", "not a valid float"),
        ("resume other.py failed", "which is not in other.py"),
        exit_code=1,
    ),
    "start": Verb(
        "start recap -p to=sam --id new",
        Started,
        ("start recap --priority high", "not a valid int"),
        ("start recpa -p to=sam", "agent 'recpa' is not registered"),
    ),
    "agents": Verb(
        "agents", Agents, ("agents recap", "unexpected extra argument"), only_looks=True
    ),
    "mcp": Verb(
        "mcp config --as recap",
        Configured,
        ("mcp config", "Missing option '--as'"),
        ("mcp config emacs --as recap", "unknown client 'emacs'"),
        only_looks=True,
    ),
    "serve": Verb(
        "serve --check",
        ReadyToServe,
        ("serve --check --port many", "not a valid int"),
        ("serve --check --host 0.0.0.0", "holdfast token create"),
        only_looks=True,
    ),
    "token": Verb(
        "token list",
        CredentialsListed,
        ("token create ann --role boss", "Invalid value for '--role'"),
        ("token revoke nobody", "no credential 'nobody'"),
        only_looks=True,
    ),
    "worker": Verb(
        "worker agents.py --once",
        Executed,
        ("worker agents.py --concurrency many", "not a valid int"),
    ),
    "replay": Verb(
        "replay agents.py done",
        Replayed,
        ("replay agents.py", "Missing argument"),
        ("replay other.py done", "which is not in other.py"),
        only_looks=True,
    ),
    "rerun": Verb(
        "rerun agents.py done --yes",
        Ran,
        ("rerun agents.py --yes", "Missing argument"),
        ("rerun other.py done --yes", "which is not in other.py"),
    ),
    "check": Verb("check agents.py", CheckedAll, ("check", "Missing argument"), only_looks=True),
    "test": Verb(
        "test spec.py --mock",
        Played,
        ("test spec.py --crash-everywhere", "use --mock, or --real"),
        ("test other.py", "has nothing to test"),
        only_looks=True,
    ),
    "validate": Verb(
        "validate procedure.tac",
        Validated,
        ("validate", "Missing argument"),
        ("validate agents.py", "is not a .tac file"),
        only_looks=True,
    ),
    "schedule": Verb(
        "schedule agents.py:asking @daily --id daily",
        Schedule,
        ("schedule agents.py:asking @daily --priority 11", "not in the range"),
        ("schedule agents.py:asking sometimes", "sometimes"),
    ),
    "schedules": Verb(
        "schedules", Schedules, ("schedules yearly", "unexpected extra argument"), only_looks=True
    ),
    "unschedule": Verb(
        "unschedule yearly",
        Unscheduled,
        ("unschedule", "Missing argument"),
        ("unschedule never", "no schedule 'never'"),
    ),
    "list": Verb("list", Page, ("list --limit many", "not a valid int"), only_looks=True),
    "show": Verb(
        "show failed",
        Shown,
        ("show failed --step six", "not a valid int"),
        ("show failed --step 9", "has no step 9; it has 2"),
        only_looks=True,
    ),
    "trace": Verb(
        "trace done", Trace, ("trace done again", "unexpected extra argument"), only_looks=True
    ),
    "events": Verb(
        "events done", Events, ("events done --after one", "not a valid int"), only_looks=True
    ),
    "diff": Verb(
        "diff done 1 2",
        Diff,
        ("diff done one 2", "not a valid int"),
        ("diff done 1 7", "has no step 7"),
        only_looks=True,
    ),
    "verify": Verb("verify done", Verdict, ("verify", "Missing argument"), only_looks=True),
    "approve": Verb(
        "approve approval --yes --by ann",
        Did,
        ("approve --yes", "Missing argument"),
        ("approve question --yes", "is not waiting for an approval; it is waiting for an answer"),
    ),
    "reject": Verb(
        "reject approval --yes",
        Did,
        ("reject --yes", "Missing argument"),
        ("reject done --yes", "is already completed"),
    ),
    "answer": Verb(
        "answer question red --yes",
        Did,
        ("answer question --yes", "Missing argument 'VALUE'"),
        ("answer question green --yes", "not one of the options: red, blue"),
    ),
    "signal": Verb(
        "signal signal payment 5",
        Did,
        ("signal signal", "Missing argument 'NAME'"),
        ("signal done payment 5", "is already completed"),
    ),
    "patch": Verb(
        "patch signal --state colour=red --yes",
        Did,
        ("patch signal --yes", "use --state KEY=VALUE"),
        ("patch done --state colour=red --yes", "is already completed"),
    ),
    "resolve": Verb(
        "resolve doubt 2 --done charged --yes",
        Did,
        ("resolve doubt 2 --yes", "use exactly one of"),
        ("resolve done 2 --retry --yes", "not in doubt"),
    ),
    "pause": Verb(
        "pause signal", Did, ("pause", "Missing argument"), ("pause done", "is already completed")
    ),
    "cancel": Verb(
        "cancel signal --yes",
        Did,
        ("cancel --yes", "Missing argument"),
        ("cancel done --yes", "is already completed"),
    ),
    "bulk": Verb(
        "bulk cancel id:signal --yes",
        Bulk,
        ("bulk delete id:signal --yes", "Invalid value for"),
        ("bulk cancel colour:red --yes", "unknown key 'colour'"),
    ),
    "undo": Verb(
        "undo done --yes",
        Did,
        ("undo --yes", "Missing argument"),
        ("undo held --yes", "is being executed by somebody"),
    ),
    "fork": Verb(
        "fork done 1 --id other",
        Forked,
        ("fork done first", "not a valid int"),
        ("fork done 9", "has no step 9"),
    ),
    "doctor": Verb(
        "doctor", Examined, ("doctor done", "unexpected extra argument"), only_looks=True
    ),
    "gc": Verb("gc --keep 1 --yes", Collected, ("gc --keep few --yes", "not a valid int")),
    "export": Verb(
        "export done -o out.jsonl",
        Exported,
        ("export done -o .", "is a directory"),
        ("export done -o nowhere/out.jsonl", "No such file"),
        only_looks=True,
    ),
    "import": Verb(
        "import foreign.jsonl",
        Imported,
        ("import nothing.jsonl", "No such file"),
        ("import done.jsonl", "already exists"),
    ),
    "demo": Verb(
        "demo --folder here",
        Demonstrated,
        ("demo --folder agents.py", "is a file"),
        ("demo --folder .", "contains an earlier demo"),
        only_looks=True,
    ),
}
ABOUT_A_RUN = [
    verb
    for verb, case in CASES.items()
    if any(
        run in case.good.split()
        for run in ("done", "failed", "approval", "question", "signal", "doubt")
    )
]


def words_of(line: str, *, with_store: bool = True) -> list[str]:
    words = line.split()
    return [*words, "--json"] + (
        ["--db", "runs.db"] if with_store and words[0] not in ("demo", "test", "validate") else []
    )


def refused(folder: Path, line: str, code: int) -> str:
    """What a command says that must refuse, and must change nothing."""
    before = everything(folder / "runs.db")
    done = real(folder, *words_of(line))
    error = msgspec.json.decode(done.stderr.splitlines()[-1], type=Error)

    assert (code, "") == (done.returncode, done.stdout), done.stderr
    assert before == everything(folder / "runs.db")
    assert "Traceback" not in done.stderr
    return error.message


def test_every_verb_has_its_case() -> None:
    """A new verb is shown here first. (How `mcp` and `serve` serve: tests/mcp_server/test_command.py and tests/web/test_command_line.py.)"""
    assert set(VERBS) == set(CASES)


@pytest.mark.parametrize("verb", CASES)
def test_the_json_of_a_verb_has_its_shape(verb: str, own_world: Path) -> None:
    """And nothing but the JSON is on stdout. Who only looks changes nothing."""
    case = CASES[verb]
    if verb == "import":
        assert (
            0
            == real(
                own_world, "export", "done", "-o", "foreign.jsonl", "--db", "runs.db"
            ).returncode
        )
        assert 0 == real(own_world, "gc", "--keep", "0", "--yes", "--db", "runs.db").returncode
    before = everything(own_world / "runs.db")

    done = real(own_world, *words_of(case.good))

    assert case.exit_code == done.returncode, done.stderr
    msgspec.convert(json.loads(done.stdout), case.shape)
    assert case.only_looks == (before == everything(own_world / "runs.db"))


@pytest.mark.parametrize("verb", ABOUT_A_RUN)
def test_an_unknown_run_is_refused(verb: str, world: Path) -> None:
    known = ("done", "failed", "approval", "question", "signal", "doubt")
    words = CASES[verb].good.split()
    at = next(n for n, word in enumerate(words) if n and word in known)
    line = " ".join([*words[:at], "no-such", *words[at + 1 :]])

    assert refused(world, line, 1).startswith("no run 'no-such' in this store; `holdfast list --db")


@pytest.mark.parametrize("verb", [verb for verb, case in CASES.items() if case.wrong_state])
def test_a_wrong_state_is_refused(verb: str, own_world: Path) -> None:
    wrong = CASES[verb].wrong_state
    assert wrong is not None
    if verb == "import":
        real(own_world, "export", "done", "-o", "done.jsonl", "--db", "runs.db")
    if verb == "demo":
        (own_world / "calendar.jsonl").touch()

    assert wrong[1] in refused(own_world, wrong[0], 1)


@pytest.mark.parametrize("verb", CASES)
def test_a_wrong_argument_is_a_usage_error(verb: str, world: Path) -> None:
    line, said = CASES[verb].wrong_type

    assert said in refused(world, line, 2)


@pytest.mark.parametrize("verb", [verb for verb in CASES if verb not in NO_STORE_NEEDED])
def test_a_store_that_is_not_there_is_not_made(verb: str, world: Path, tmp_path: Path) -> None:
    for name in ("agents.py", "other.py"):
        (tmp_path / name).write_bytes((world / name).read_bytes())

    done = real(tmp_path, *words_of(CASES[verb].good, with_store=False))

    error = msgspec.json.decode(done.stderr.splitlines()[-1], type=Error)
    assert (1, "", "NotFound") == (done.returncode, done.stdout, error.error)
    assert "no store at .holdfast/holdfast.db; choose one with --db PATH" in error.message
    assert not (tmp_path / ".holdfast").exists()


@pytest.mark.parametrize("verb", [verb for verb in ABOUT_A_RUN if verb != "verify"])
def test_a_damaged_run_is_neither_shown_nor_changed(verb: str, own_world: Path) -> None:
    """It is said where the damage is, and what to do. (Who only adds to a log looks no further back than
    that takes; damage there is found when the run is shown, verified or continued with.)"""
    case = CASES[verb]
    run_id = next(word for word in case.good.split()[1:] if word in known_runs(own_world))
    (damage_end if verb in ("signal", "patch", "pause") else damage)(own_world / "runs.db", run_id)

    said = refused(own_world, case.good, 1)

    assert "is damaged at event" in said


def known_runs(folder: Path) -> set[str]:
    return {row[1] for row in everything(folder / "runs.db")["runs"]}
