"""Wrong arguments to the public methods: always an error of ours that names what is wrong, never a bare
TypeError from somewhere below, and nothing is recorded.
"""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, HoldfastError, InvalidInput, Options, Run, RunWaiting, agent
from support.workers import STORES

WRONG: dict[str, Any] = {
    "None": None,
    "int": 5,
    "bytes": b"x",
    "object": object(),
    "list": [],
    "dict": {"a": 1},
    "float": 1.5,
    "surrogate": "\udcff",
    "nul": "nul\0",
    "empty": "",
    "tuple": ("a",),
    "ellipsis": ...,
    "bool": True,
    "nan": float("nan"),
    "negative": -1,
    "huge": 2**80,
    "class": int,
}


@agent
def done(run: Run, n: int = 1) -> int:
    return n


@agent
def waits(run: Run) -> Any:
    return run.wait_for("go")


@agent
def asks(run: Run) -> Any:
    return run.ask("Which?")


@agent
def wants(run: Run) -> bool:
    run.approve("May I?")
    return True


AGENTS = [done, waits, asks, wants]

# Of each method: arguments that are right, of which one at a time is replaced; and the options to try.
METHODS: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]] = {
    "run": ((done,), {}, ("id",)),
    "start": ((done,), {}, ("id", "priority")),
    "handle": (("done",), {}, ()),
    "resume": (("done",), {}, ("by", "why", "override")),
    "rerun": (("asks",), {}, ("by", "why")),
    "drive": (("waits",), {}, ()),
    "result": (("done",), {}, ("timeout",)),
    "worker": ((), {}, ("agents", "concurrency", "grace")),
    "schedule": (
        (done,),
        {"cron": "* * * * *"},
        ("cron", "tz", "input", "id", "priority", "catch_up"),
    ),
    "unschedule": (("done",), {}, ()),
    "get": (("done",), {}, ()),
    "at": (("done", 1), {}, ("when",)),
    "diff": (("done", 1, 1), {}, ()),
    "events": (("done",), {}, ("after",)),
    "artifact": (("done", "report"), {}, ()),
    "runs": ((), {}, ("status", "agent", "parent", "limit", "cursor")),
    "verify": (("done",), {}, ()),
    "replay": (("done",), {}, ()),
    "approve": (("wants",), {}, ("request", "by", "why", "digest")),
    "reject": (("wants",), {}, ("request", "by", "why", "digest")),
    "answer": (("asks", "this"), {}, ("request", "by", "why")),
    "signal": (("waits", "other"), {}, ("signal_id", "by", "why")),
    "resolve": (("waits",), {"failed": "it did not"}, ("call", "by", "why", "failed")),
    "patch": (("waits", {"a": 1}), {}, ("delete", "by", "why")),
    "pause": (("waits",), {}, ("by", "why")),
    "cancel": (("waits",), {}, ("by", "why")),
    "undo": (("waits",), {}, ("by", "why")),
    "fork": (("done", 1), {}, ("id", "state", "by", "why")),
}
VALUES = {("answer", 1)}  # anything can be an answer


@pytest.fixture(scope="module", params=STORES)
def hf(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Holdfast]:
    if request.param == "sqlite":
        yield from filled(str(tmp_path_factory.mktemp("store") / "a.db"))
        return
    server = request.getfixturevalue("postgres_server")
    name = server.create_database()
    yield from filled(server.dsn(name))
    server.drop_database(name)


def filled(url: str) -> Iterator[Holdfast]:
    with Holdfast(url, agents=AGENTS) as opened:
        opened.run(done, id="done")
        for fn in (waits, asks, wants):
            with pytest.raises(RunWaiting):
                opened.run(fn, id=fn.__name__)
        yield opened


def attempts(method: str) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    args, given, options = METHODS[method]
    for name, wrong in WRONG.items():
        for place in range(len(args)):
            if (method, place) not in VALUES:
                changed = (*args[:place], wrong, *args[place + 1 :])
                yield f"argument {place + 1} {name}", changed, given
        for option in options:
            yield f"{option} {name}", args, {**given, option: wrong}


@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_argument_is_refused_by_an_error_of_ours(hf: Holdfast, method: str) -> None:
    """(What is accepted, for example an empty id or any text as a reason, is not wrong.)"""
    raw = {}
    for name, args, given in attempts(method):
        try:
            getattr(hf, method)(*args, **given)
        except HoldfastError:
            continue
        except Exception as error:
            raw[name] = repr(error)

    assert {} == raw
    assert [] == [row.id for row in hf.runs(limit=1000) if not hf.verify(row.id).ok]


@pytest.mark.parametrize("agents", [None, 5, "done", [None], [5], [print], object()])
def test_invalid_agents_are_refused_before_a_store_is_opened(agents: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        Holdfast(tmp_path / "a.db", agents=agents)
    assert [] == list(tmp_path.iterdir())


PATHS = """
import os, sys
from pathlib import Path
import holdfast.store.sqlite
import holdfast.words.advice  # now: the user below may not be able to read the interpreter's own files
from holdfast import Holdfast, HoldfastError
from holdfast.cli.common import existing_store

folder = Path(sys.argv[1])
(folder / "file").write_text("x")
(folder / "locked").mkdir()
(folder / "locked" / "a.db").touch()
(folder / "locked").chmod(0)
gone = folder / "gone"
gone.mkdir()
os.chdir(gone)
gone.rmdir()
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
long = "x" * 300
paths = ["locked/a.db", "locked/b.db", "locked/sub/b.db", "file/a.db", "file/sub/a.db", long, f"{long}/a.db"]
for path in [*(str(folder / path) for path in paths), "relative.db", "x" * 5000]:
    for open in (lambda: Holdfast(path).close(), lambda: existing_store(path).__enter__()):
        try:
            open()
        except HoldfastError as error:
            continue
        print("opened", path)
"""


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(
            ("lease_seconds", value)
            for value in (0, -1, math.nan, math.inf, "30", True, 1e30, None)
        ),
        *(("patience_seconds", value) for value in (-1, math.nan, math.inf, "5", None)),
        *(("quarantine_after", value) for value in (0, -3, 2.5, "5", True, None)),
        *((name, 3) for name in ("sleep", "boundary", "stand_in")),
        ("sleep", None),
    ],
)
def test_an_invalid_option_is_refused_before_a_run_is_claimed(option: str, value: Any) -> None:
    """A lease that has ended when it begins would be lost at the first call, and a run that is claimed would wait for it."""
    with pytest.raises(InvalidInput, match=option):
        Options(**{option: value})


def test_a_path_that_cannot_be_opened_is_an_error_of_ours(tmp_path: Path) -> None:
    """An unreadable folder, a file in place of one, names that are too long, a folder that is gone."""
    tested = subprocess.run(
        [sys.executable, "-c", PATHS, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "HOLDFAST_URL": ""},
    )
    (tmp_path / "locked").chmod(0o700)

    assert ("", "", 0) == (tested.stdout, tested.stderr, tested.returncode)
