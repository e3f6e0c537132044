"""`holdfast` as people have it: a folder with an agent file and a store, a process, a terminal."""

import codecs
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.cli.verbs import cli

HOLDFAST = str(Path(sys.executable).parent / "holdfast")
"""The installed command."""


def environment(**variables: str) -> dict[str, str]:
    """This one without what would change what commands do."""
    ours = ("HOLDFAST_URL", "NO_COLOR", "CI")
    return {**{name: value for name, value in os.environ.items() if name not in ours}, **variables}


def commands(text: str) -> list[str]:
    """The commands in what was printed, each on a line of its own, perhaps after a label."""
    return re.findall(r"(?:^|: | {2})(holdfast (?:[a-z]+) .*)$", text, re.MULTILINE)


AGENTS = """
import datetime, fcntl, os, pathlib, select, signal, sys
from typing import Literal
from holdfast import Retry, Run, agent, step, tool

HERE = pathlib.Path(__file__).parent

def go_through(door: str) -> None:  # as in support.waiting, which is not importable here
    with (HERE / door).open() as file:
        while not is_open(file):
            select.select([], [], [], 0.01)

def is_open(file) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

@step
def draft(notes: str) -> str:
    return notes.upper()

def unsend(to: str, result: dict) -> None:
    (HERE / "undone").write_text(to)

@tool(risk="external_action", retry=Retry(attempts=3, initial=0.001), undo=unsend)
def send(to: str, body: str, idempotency_key: str = "") -> dict:
    with (HERE / "sent").open("a") as file:
        file.write(to + "\\n")
    if not (HERE / "fixed").exists() and to == "nobody":
        raise ConnectionError("nobody is there")
    return {"message_id": "m-1"}

@tool
def charge(amount: int) -> str:
    with (HERE / "charged").open("a") as file:
        file.write(f"{amount}\\n")
    if not (HERE / "fixed").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return "charged"

@step
def wait_at(door: str) -> str:
    print("waiting at the door", flush=True)
    go_through(door)
    return door

@tool
def charge_slowly(amount: int) -> str:
    print("charging", flush=True)
    go_through("go")
    return "charged"

@agent
def risky(run: Run) -> str:
    draft("first")
    return charge_slowly(5)

@agent(stages=("drafting", "sending", "complete"))
def recap(run: Run, to: str, notes: str = "hello") -> str:
    run.stage = "drafting"
    run.decide("route", "email", why="they asked", options=["email", "letter"])
    run.state.draft = draft(notes)
    run.stage = "sending"
    run.state.message_id = send(to, run.state.draft)["message_id"]
    run.stage = "complete"
    return run.state.message_id

@agent(approve=("external_action",))
def careful(run: Run, to: str) -> dict:
    return send(to, draft("hello"))

@agent
def asking(run: Run) -> str:
    draft("first")
    return f"{run.ask('Which colour?', options=['red', 'blue'])}"

@agent
def listening(run: Run) -> dict:
    draft("first")
    return {"got": run.wait_for("payment")}

@agent
def paying(run: Run, amount: int) -> str:
    draft("first")
    return charge(amount)

@agent
def patient(run: Run) -> str:
    draft("first")
    return wait_at("go")

@agent
def typed(run: Run, n: int, ratio: float = 0.5, on: bool = False, day: datetime.date | None = None,
          kind: Literal["a", "b"] = "a", tags: list[str] = [], loose=None) -> dict:
    return {"n": n, "ratio": ratio, "on": on, "day": str(day), "kind": kind, "tags": tags, "loose": loose}
"""


class Shell:
    """`holdfast` in a folder that has an agent file and, after the first run, a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = folder / "runs.db"
        (folder / "agents.py").write_text(AGENTS)

    def __call__(self, *words: str, input: str | None = None, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, [*words, "--db", str(self.db)], input=input)
        unexpected = result.exception if not isinstance(result.exception, SystemExit) else None
        assert (code, None) == (result.exit_code, unexpected), result.output
        return result

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code).stdout)

    def run(self, agent: str, run_id: str, *params: str, code: int = 0) -> Result:
        given = [word for param in params for word in ("--param", param)]
        return self("run", f"agents.py:{agent}", "--id", run_id, *given, code=code)

    def process(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """The installed command, in a process of its own."""
        return real(self.folder, *words, "--db", str(self.db), **env)

    def log(self, run_id: str) -> list[Any]:
        with Holdfast(self.db) as hf:
            return [record for record, _ in hf.events(run_id)]

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


def real(
    folder: Path, *words: str, input: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """The installed command, as a script would call it. No terminal, no questions answered."""
    return subprocess.run(
        [HOLDFAST, *words],
        cwd=folder,
        env=environment(**env),
        input=input,
        capture_output=True,
        text=True,
        timeout=240,
    )


def typed(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """A line as a person pastes it into a shell."""
    path = f"{Path(HOLDFAST).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=240,
    )


def everything(db: Path) -> dict[str, list[Any]]:
    """All that a SQLite store holds, to see that nothing changed."""
    with_rows = {}
    connection = apsw.Connection(str(db))
    try:
        for (table,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall():
            with_rows[table] = connection.execute(f'SELECT * FROM "{table}"').fetchall()
    finally:
        connection.close()
    assert with_rows["runs"] and with_rows["events"]
    return with_rows


def damage(db: Path, run_id: str) -> None:
    """One changed letter in one event of one run."""
    connection = apsw.Connection(str(db))
    try:
        connection.execute(
            "UPDATE events SET data = CAST(replace(CAST(data AS TEXT), 'draft', 'drift') AS BLOB)"
            " WHERE seq > 0 AND run = (SELECT key FROM runs WHERE id = ?)",
            (run_id,),
        )
        assert connection.changes()
    finally:
        connection.close()


def damage_end(db: Path, run_id: str) -> None:
    """One letter more in the last event of one run."""
    connection = apsw.Connection(str(db))
    try:
        connection.execute(
            "UPDATE events SET data = CAST(CAST(data AS TEXT) || ' ' AS BLOB) WHERE rowid = "
            "(SELECT e.rowid FROM events e JOIN runs r ON r.key = e.run WHERE r.id = ? ORDER BY seq DESC LIMIT 1)",
            (run_id,),
        )
        assert connection.changes()
    finally:
        connection.close()


# -- a store with a run in every state that a person may meet ----------------------------------

MAKE = """
import sys, agents
from holdfast import Holdfast, Options, RunFailed, RunWaiting

def attempt(agent, id, **input):
    try:
        hf.run(agent, id=id, **input)
    except (RunFailed, RunWaiting):
        pass

with Holdfast(sys.argv[1], options=Options(lease_seconds=2.0)) as hf:
    attempt(agents.recap, "done", to="sam")
    attempt(agents.recap, "failed", to="nobody")
    attempt(agents.careful, "approval", to="sam")
    attempt(agents.asking, "question")
    attempt(agents.listening, "signal")
    hf.start(agents.asking, id="due")
    hf.register(agents.recap)
    hf.schedule(agents.asking, cron="@yearly", id="yearly")
    hf.start(agents.listening, id="held")
    hf.store.claim("held", worker="somebody", lease_us=3_600_000_000)
    attempt(agents.paying, "doubt", amount=5)  # kills this process
"""


SPEC = '''
from holdfast import agent

@agent
def five(run) -> int:
    return 5

SPEC = """
Feature: five
  Scenario: is five
    When the agent runs
    Then the output should be 5
"""
'''


def make_world(folder: Path) -> None:
    """Runs `done`, `failed`, `approval`, `question`, `signal`, `due`, `held` and `doubt`, in runs.db;
    a schedule `yearly`, and files with other agents and with a spec."""
    (folder / "agents.py").write_text(AGENTS)
    (folder / "other.py").write_text("from holdfast import agent\n@agent\ndef other(run): pass\n")
    (folder / "spec.py").write_text(SPEC)
    (folder / "procedure.tac").write_text("Procedure { function() return 1 end }\n")
    made = subprocess.run(
        [sys.executable, "-c", MAKE, str(folder / "runs.db")],
        cwd=folder,
        env=environment(PYTHONPATH=str(folder)),
        capture_output=True,
        text=True,
    )
    assert -signal.SIGKILL == made.returncode, made.stderr
    # The lease ends; the doubt is noted.
    real(folder, "resume", "agents.py", "doubt", "--db", "runs.db")


def copy_world(world: Path, folder: Path) -> Path:
    """A copy to change, as no process has it open; its store."""
    for path in world.iterdir():
        if path.is_file():
            shutil.copy2(path, folder / path.name)
    return folder / "runs.db"


# -- a terminal --------------------------------------------------------------------------------

# A process that makes a pseudo-terminal its own before it becomes the command: forking here, in a
# process with threads, is what Python warns of.
LOGIN = """
import fcntl, os, sys, termios
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
for number in range(3):
    os.dup2(fd, number)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Terminal:
    """A command at a pseudo-terminal: type, and wait for what it says."""

    def __init__(self, folder: Path, *command: str, **env: str) -> None:
        self.said = ""
        self._fd, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", LOGIN, os.ttyname(theirs), *command],
            cwd=folder,
            env=environment(TERM="xterm", COLUMNS="200", **env),
            start_new_session=True,
        )
        self._theirs: int | None = theirs
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def text(self) -> str:
        """What was said, as one would copy it: without colours and the terminal's line ends."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.said).replace("\r\n", "\n")

    def expect(self, expected: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while expected not in self.said:
            assert time.monotonic() < end, f"waited for {expected!r}, got {self.said!r}"
            assert self._read(), f"ended before {expected!r}: {self.said!r}"

    def _read(self) -> bool:
        if self._process.poll() is not None and self._theirs is not None:
            os.close(self._theirs)  # until now it kept open what the process had not opened yet
            self._theirs = None
        ready, _, _ = select.select([self._fd], [], [], 0.05)
        if not ready:
            return True
        try:
            data = os.read(self._fd, 4096)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.said += self._decoder.decode(data)
        return bool(data)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def end(self) -> int:
        while self._read():
            pass
        return self._process.wait(120)

    def close(self) -> None:
        """Leave nothing behind, however the test ended."""
        self._process.kill()
        self._process.wait()
        for fd in (self._fd, self._theirs):
            if fd is not None:
                os.close(fd)
