"""A store as the installed command sees it: pages of its runs, what doctor finds, what gc deletes,
and a run that moves from one store to another.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import apsw
import pytest

from support.shell import damage, everything, real


def data(folder: Path, *words: str, code: int = 0) -> Any:
    done = real(folder, *words, "--json", "--db", "runs.db")
    assert code == done.returncode, done.stderr
    return json.loads(done.stdout)


def ids(folder: Path, *words: str) -> list[str]:
    return [run["id"] for run in data(folder, "list", *words)["runs"]]


def change(folder: Path, sql: str, *params: Any) -> None:
    """Something that happens to a file behind Holdfast's back."""
    connection = apsw.Connection(str(folder / "runs.db"))
    try:
        connection.execute(sql, params)
    finally:
        connection.close()


# -- list ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--status", "completed"], ["done"]),
        (["--status", "waiting"], ["doubt", "signal", "question", "approval"]),
        (["--status", "running"], ["held"]),
        (["--status", "waiting", "--agent", "asking"], ["question"]),
        (["--agent", "recap"], ["failed", "done"]),
        (["--parent", "done"], []),
        (["--limit", "2"], ["doubt", "held"]),
    ],
    ids=lambda words: "-".join(words).replace("--", "") or "nothing",
)
def test_list_filters(world: Path, words: list[str], found: list[str]) -> None:
    assert found == ids(world, *words)


def test_the_next_page_is_a_command_that_keeps_the_filters(world: Path) -> None:
    """For people as a line to paste, for programs as `next`."""
    page = real(world, "list", "--status", "waiting", "--limit", "3", "--db", "runs.db")
    more = shlex.split(page.stdout.splitlines()[-1].removeprefix("more: "))
    rest = real(world, *more[1:])

    assert ["doubt", "signal", "question"] == [
        line.split()[0] for line in page.stdout.splitlines()[1:-1]
    ]
    assert ["approval"] == [line.split()[0] for line in rest.stdout.splitlines()[1:]]
    first = data(world, "list", "--status", "waiting", "--limit", "3")
    second = data(
        world, "list", "--status", "waiting", "--limit", "3", "--cursor", str(first["next"])
    )
    assert (["approval"], None) == ([run["id"] for run in second["runs"]], second["next"])


# -- doctor --------------------------------------------------------------------------------------


def weak(folder: Path, db: str = "runs.db") -> list[str]:
    """What doctor finds weak; its exit code says whether there is anything."""
    done = real(folder, "doctor", "--json", "--db", db)
    found = json.loads(done.stdout)
    names = [finding["name"] for finding in found["findings"] if not finding["ok"]]
    assert all(finding["advice"] for finding in found["findings"] if not finding["ok"])
    assert (0 if found["ok"] else 1) == done.returncode
    assert found["ok"] == (not names and not found["damaged"])
    return names


def test_doctor_names_every_setting_it_looks_at(world: Path) -> None:
    found = data(world, "doctor")

    assert [
        "store",
        "schema",
        "SQLite library",
        "journal",
        "durability",
        "checksums",
        "integrity",
        "file mode",
    ] == [finding["name"] for finding in found["findings"]]
    assert (True, 8, []) == (found["ok"], found["runs"], found["damaged"])


def test_doctor_names_a_durability_that_was_weakened(world: Path) -> None:
    assert ["durability"] == weak(world, "sqlite:///runs.db?synchronous=NORMAL")
    done = real(world, "doctor", "--db", "sqlite:///runs.db?synchronous=OFF", "--json")
    assert (1, "UnsafeStore") == (done.returncode, json.loads(done.stderr)["error"])
    wrong = real(world, "doctor", "--db", "sqlite:///runs.db?fast=yes")
    assert "a SQLite store has no option 'fast'" in wrong.stderr


def test_doctor_names_a_file_that_others_can_read(own_world: Path) -> None:
    (own_world / "runs.db").chmod(0o644)

    assert ["file mode"] == weak(own_world)
    assert "WEAK" in real(own_world, "doctor", "--db", "runs.db").stdout


def test_doctor_names_a_damaged_run_and_checks_the_others(own_world: Path) -> None:
    damage(own_world / "runs.db", "done")

    found = data(own_world, "doctor", code=1)
    assert (8, ["done"]) == (found["runs"], [hurt["run"] for hurt in found["damaged"]])
    assert "damaged at event" in found["damaged"][0]["problem"]
    assert "8 runs checked, 1 damaged" in real(own_world, "doctor", "--db", "runs.db").stdout


def test_doctor_names_a_damaged_page_without_giving_up(own_world: Path) -> None:
    """Noise in the middle of the events: what SQLite says of it, and every run that it hits."""
    db = own_world / "runs.db"
    connection = apsw.Connection(str(db))
    connection.pragma("wal_checkpoint", "truncate")
    size = connection.pragma("page_size")
    (page,) = next(
        connection.execute(
            "SELECT max(pageno) FROM dbstat WHERE name = 'events' AND pagetype = 'leaf'"
        )
    )
    connection.close()
    with db.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)

    found = data(own_world, "doctor", code=1)

    assert ["integrity"] == [finding["name"] for finding in found["findings"] if not finding["ok"]]
    assert found["damaged"]
    assert len(found["damaged"]) < found["runs"] == 8


@pytest.mark.parametrize("status", [b"c\xedmpleted", b"bompleted"], ids=["not text", "unknown"])
def test_doctor_reports_a_row_that_does_not_read(own_world: Path, status: bytes) -> None:
    """Rows of runs are not part of a hash chain: the one that does not read ends the list, and is reported."""
    with apsw.Connection(str(own_world / "runs.db")) as db:
        db.pragma("ignore_check_constraints", 1)
        db.execute("UPDATE runs SET status = CAST(? AS TEXT) WHERE id = 'done'", (status,))
    db.close()

    assert "list of runs" in weak(own_world)
    shown = real(own_world, "show", "done", "--json", "--db", "runs.db")
    assert (1, "StoreDamaged") == (shown.returncode, json.loads(shown.stderr)["error"])


def test_doctor_refuses_a_store_of_a_newer_holdfast_and_leaves_it_alone(own_world: Path) -> None:
    change(own_world, "PRAGMA user_version = 999")
    before = everything(own_world / "runs.db")

    done = real(own_world, "doctor", "--json", "--db", "runs.db")

    assert (1, "", "SchemaMismatch") == (
        done.returncode,
        done.stdout,
        json.loads(done.stderr)["error"],
    )
    assert "this Holdfast supports" in json.loads(done.stderr)["message"]
    assert before == everything(own_world / "runs.db")


@pytest.mark.parametrize(
    "content",
    [b"my shopping list " * 100, b"SQLite format 3\0" + bytes(4096)],
    ids=["text", "zeros"],
)
def test_a_file_that_is_not_a_store_is_refused_and_left_unchanged(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "runs.db").write_bytes(content)

    for verb in ("list", "doctor"):
        done = real(tmp_path, verb, "--db", "runs.db")

        assert (1, "") == (done.returncode, done.stdout)
        assert done.stderr.startswith("error: "), done.stderr
    assert content == (tmp_path / "runs.db").read_bytes()


# -- gc ------------------------------------------------------------------------------------------


def test_gc_by_age_and_by_count_deletes_only_what_has_ended(own_world: Path) -> None:
    """`done` ended two hours ago; `failed` just now; all others have not ended."""
    two_hours = 2 * 3_600_000_000
    change(own_world, "UPDATE runs SET updated_at = updated_at - ? WHERE id = 'done'", two_hours)

    assert [] == data(own_world, "gc", "--older-than", "3h", "--yes")["deleted"]
    assert [] == data(own_world, "gc", "--older-than", "1h", "--keep", "2", "--yes")["deleted"]
    dry = data(own_world, "gc", "--older-than", "1h", "--dry-run")
    assert (["done"], 8) == (dry["deleted"], len(ids(own_world)))
    nobody = real(own_world, "gc", "--older-than", "1h", "--db", "runs.db")
    assert (1, 8) == (nobody.returncode, len(ids(own_world)))
    assert "use --yes to skip the question" in nobody.stderr
    assert ["done"] == data(own_world, "gc", "--older-than", "1h", "--yes")["deleted"]
    assert ["failed"] == data(own_world, "gc", "--keep", "0", "--yes")["deleted"]
    assert {"approval", "question", "signal", "due", "held", "doubt"} == set(ids(own_world))
    assert weak(own_world) == []


# -- export and import ---------------------------------------------------------------------------


def test_a_run_moves_to_another_store_through_a_pipe(world: Path, tmp_path: Path) -> None:
    """Chained as it was; what had not ended is paused, and waits for someone who trusts it."""
    for run_id, status in (("done", "completed"), ("question", "paused")):
        packed = real(world, "export", run_id, "--db", "runs.db").stdout
        taken = real(tmp_path, "import", "-", "--json", "--db", "new.db", input=packed)

        assert (0, status) == (taken.returncode, json.loads(taken.stdout)["status"])
        assert 0 == real(tmp_path, "verify", run_id, "--db", "new.db").returncode
        again = real(tmp_path, "import", "-", "--json", "--db", "new.db", input=packed)
        assert (1, "InvalidInput") == (again.returncode, json.loads(again.stderr)["error"])


def test_an_import_that_was_tampered_with_makes_no_store(world: Path, tmp_path: Path) -> None:
    packed = real(world, "export", "done", "--db", "runs.db").stdout
    for wrong in (packed.replace("m-1", "m-2"), packed[: len(packed) // 2], "hello", ""):
        done = real(tmp_path, "import", "-", "--json", "--db", "new.db", input=wrong)

        assert (1, "") == (done.returncode, done.stdout)
        assert json.loads(done.stderr)["error"] in ("NotABundle", "LogDamaged")
    assert [] == list(tmp_path.iterdir())
