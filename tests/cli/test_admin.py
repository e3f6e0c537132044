"""gc, export and import. In this process, through click's runner."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast, bundle
from holdfast.core.events import SignalReceived
from holdfast.store.base import LIVE, Snapshot
from support.shell import Shell, environment, everything

# -- gc, export, import --------------------------------------------------------------------------


def test_gc_deletes_only_what_has_ended_and_keeps_the_newest(shell: Shell) -> None:
    for run_id in ("r1", "r2", "r3"):
        shell.run("recap", run_id, "to=sam")
    shell.run("asking", "a1", code=1)

    assert {"deleted": ["r2", "r1"], "dry_run": True} == shell.json(
        "gc", "--keep", "1", "--dry-run"
    )
    assert [] == shell.json("gc", "--older-than", "1h", "--yes")["deleted"]
    assert "nothing was done" in shell("gc", "--keep", "0", input="n\n", code=1).stderr
    assert {"deleted": ["r2", "r1"], "dry_run": False} == shell.json("gc", "--keep", "1", "--yes")
    assert ["a1", "r3"] == [run["id"] for run in shell.json("list")["runs"]]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--older-than", "soon"],
        ["--keep", "-1"],
        ["--snapshots", "0"],
        ["--snapshot-age", "soon"],
    ],
)
def test_gc_refuses_what_is_unclear(shell: Shell, words: list[str]) -> None:
    shell.run("recap", "r1", "to=sam")

    shell("gc", *words, "--yes", code=2)

    assert 1 == len(shell.json("list")["runs"])


def snapshots(shell: Shell, *days_old: int) -> None:
    """Leave snapshots of r1 of these ages, at its events from the first on."""
    with Holdfast(shell.db) as hf:
        for seq, days in enumerate(days_old):
            made_at = hf.store.now() - days * 86_400_000_000
            kept = Snapshot(seq, b"h", f"{LIVE}1", made_at, b"")
            hf.store.snapshots.save("r1", kept, keep=100)


def ends_of_snapshots(shell: Shell) -> list[int]:
    rows = everything(shell.db)["snapshots"]
    return sorted(row[1] for row in rows if str(row[3]).startswith(LIVE))


def test_gc_rotates_snapshots_by_number_and_age_and_deletes_no_run(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    snapshots(shell, 40, 30, 20, 10)
    unharmed = shell.log("r1")

    assert "no snapshots deleted" in shell("gc", "--snapshots", "1", "--dry-run").stdout
    assert [0, 1, 2, 3] == ends_of_snapshots(shell)
    rotated = shell.json("gc", "--snapshots", "3")
    assert {"deleted": [], "dry_run": False, "snapshots": 1} == rotated
    assert [1, 2, 3] == ends_of_snapshots(shell)
    assert 1 == shell.json("gc", "--snapshot-age", "25d")["snapshots"]
    assert [2, 3] == ends_of_snapshots(shell)
    assert "1 snapshot deleted" in shell("gc", "--snapshot-age", "1h").stdout  # never the newest
    assert [3] == ends_of_snapshots(shell)
    assert unharmed == shell.log("r1")


def exported(shell: Shell, run_id: str) -> Path:
    file = shell.folder / f"{run_id}.jsonl"
    shell("export", run_id, "-o", str(file))
    return file


def test_an_exported_run_is_as_private_as_the_store(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    before = os.umask(0)
    try:
        file = exported(shell, "r1")
    finally:
        os.umask(before)

    assert 0o600 == file.stat().st_mode & 0o777


def test_a_run_imported_into_another_store_is_the_same(shell: Shell) -> None:
    """Chained as it was; what lies next to the log goes along."""
    shell.run("recap", "r1", "to=sam", f"notes={'x' * 100_000}")
    file, before = exported(shell, "r1"), shell.log("r1")
    shell.db = shell.folder / "other.db"

    assert {"run": "r1", "status": "completed", "events": len(before)} == shell.json(
        "import", str(file)
    )
    assert before == shell.log("r1")
    assert "m-1\n" == shell("resume", "agents.py", "r1").stdout
    assert "already exists" in shell("import", str(file), code=1).stderr


def test_an_imported_run_has_received_what_it_had_received(shell: Shell) -> None:
    shell.run("asking", "r1", code=1)
    for _ in range(2):
        shell("signal", "r1", "go", "--signal-id", "x", "--yes")
    file = shell.folder / "r1.jsonl"
    file.write_text(shell("export", "r1").stdout)
    shell.db = shell.folder / "elsewhere.db"
    shell("import", str(file))
    for signal_id in ("x", "y"):
        shell("signal", "r1", "go", "--signal-id", signal_id, "--yes")

    with Holdfast(shell.db) as hf:
        assert ["x", "y"] == [x.id for _, x in hf.events("r1") if isinstance(x, SignalReceived)]


def test_an_imported_run_that_had_not_ended_executes_nothing_until_resumed(shell: Shell) -> None:
    shell.run("asking", "r1", code=1)
    shell("answer", "r1", "red", "--yes")
    file = exported(shell, "r1")
    shell.db = shell.folder / "other.db"

    assert "paused" == shell.json("import", str(file))["status"]
    assert {"executed": 0} == shell.json("worker", "agents.py", "--once")
    assert "red\n" == shell("resume", "agents.py", "r1").stdout


def _without(number: int) -> Callable[[list[str]], list[str]]:
    return lambda lines: [line for i, line in enumerate(lines) if i != number]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [], "its first line"),
        (lambda lines: ["hello", *lines], "its first line"),
        (lambda lines: [lines[0].replace('"version":1', '"version":2'), *lines[1:]], "version 2"),
        (lambda lines: [lines[0].replace("r1", "r2"), *lines[1:]], "damaged at event 0"),
        (lambda lines: [line.replace("recap", "racap") for line in lines], "damaged at event 0"),
        (_without(3), "damaged at event 2"),
        (_without(-1), ""),
        (lambda lines: lines[:-1], "is missing from it"),
        (
            lambda lines: [*lines[:-1], lines[-1].replace('"data":"', '"data":"AAAA')],
            "has other bytes",
        ),
        (lambda lines: [*lines[:2], '{"seq": -1}', *lines[2:]], "line 3 cannot be parsed"),
        (lambda lines: lines[:1], "does not start with the creation"),
    ],
)
def test_an_import_that_was_tampered_with_is_refused_whole(
    shell: Shell, change: Callable[[list[str]], list[str]], said: str
) -> None:
    shell.run("recap", "r1", "to=sam", f"notes={'x' * 100_000}")
    file = exported(shell, "r1")
    lines = file.read_text().splitlines()
    file.write_text("\n".join(change(lines)))
    shell.db = shell.folder / "other.db"

    result = shell("import", str(file), code=1 if said else 0)

    assert said in result.stderr
    if said:
        assert not shell.db.exists()


class Endless(io.StringIO):
    """A file whose last line never ends; it counts what is read of that."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.lines, self.given = list(lines), 0

    def readline(self, size: int | None = -1, /) -> str:
        assert size is not None and size > 0, "the line was to be read whole"
        if self.lines:
            return self.lines.pop(0)
        self.given += size
        return "x" * size


def test_an_import_reads_no_more_of_a_line_than_it_would_accept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FAULTS 109: the limit is checked while reading, not afterwards."""
    monkeypatch.setattr(bundle, "CHARS_MAX", 1000)
    first = json.dumps({"format": bundle.FORMAT, "version": 1, "id": "r"}) + "\n"
    of_one, of_two = Endless(), Endless(first)

    for file in (of_one, of_two):
        with pytest.raises(bundle.NotABundle, match="is longer than"):
            bundle.read(bundle.lines_of(file))
    assert (1001, 1001 - len(first)) == (of_one.given, of_two.given)


def test_a_file_of_one_huge_line_is_refused_in_little_memory(tmp_path: Path) -> None:
    """3 GB of nothing, which take no space on the disk, and a process that may not have so much."""
    with (tmp_path / "huge.jsonl").open("wb") as file:
        file.truncate(3 << 30)
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); "
        "from holdfast.cli import main; sys.argv = ['holdfast', 'import', 'huge.jsonl', '--db', 'a.db']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert (1, "") == (done.returncode, done.stdout)
    assert "its first line is longer than" in done.stderr
    assert not (tmp_path / "a.db").exists()
