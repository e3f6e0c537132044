"""The files of a store are deleted, renamed or replaced while a process has them open (FAULTS 28, 132).

The process would continue in a file that no one else can open any more, and the next one would start from
nothing. So it stops before its next effect, and an empty file in the place of a store is not a new store.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from holdfast import Holdfast, Options, Run, agent, tool
from holdfast.errors import HoldfastError, StoreDamaged, StoreReplaced
from holdfast.store.sqlite import SQLiteStore
from support.waiting import eventually

SUFFIXES = ("", "-wal", "-shm")


class Desk:
    """An agent of two tools, and something that happens to the store between them."""

    def __init__(self, path: Path) -> None:
        self.path, self.sent = path, list[str]()
        self.harm: Callable[[], None] | None = None
        sent = self.sent

        @tool
        def send(text: str) -> str:
            sent.append(text)
            return text

        @agent
        def desk(run: Run) -> str:
            send("first")
            if self.harm is not None:
                self.harm()
            return send("second")

        self.agent = desk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def desk(path: Path) -> Desk:
    return Desk(path)


def delete(path: Path) -> None:
    for suffix in SUFFIXES:
        Path(f"{path}{suffix}").unlink()


def delete_the_database(path: Path) -> None:
    path.unlink()


def delete_the_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def delete_the_index(path: Path) -> None:
    Path(f"{path}-shm").unlink()


def rename(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def rename_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def replace(path: Path) -> None:
    """As `cp --remove-destination`, `mv` and `rsync` do: another file under the same name."""
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def replace_by_an_empty_file(path: Path) -> None:
    path.with_name("empty").touch()
    path.with_name("empty").replace(path)


ALL = [
    delete,
    delete_the_database,
    delete_the_log,
    delete_the_index,
    rename,
    rename_folder,
    replace,
    replace_by_an_empty_file,
]


@pytest.mark.parametrize("harm", ALL, ids=lambda harm: harm.__name__)
def test_a_process_without_its_store_starts_no_effect_and_acknowledges_nothing(
    harm: Callable[[Path], None], desk: Desk, path: Path
) -> None:
    with Holdfast(path) as hf:
        desk.harm = lambda: harm(path)
        with pytest.raises(StoreReplaced, match="restore"):
            hf.run(desk.agent, id="r")
        assert ["first"] == desk.sent
        with pytest.raises(StoreReplaced):  # for good, also if a file comes back
            hf.run(desk.agent, id="other")
        with pytest.raises(StoreReplaced):
            hf.get("r")


@pytest.mark.parametrize("size", ["smaller", "same"])
def test_an_older_copy_written_over_the_open_file_is_noticed(
    size: str, desk: Desk, path: Path
) -> None:
    """`cp backup.db a.db`: the same file, with the content of another time. The run is not in it."""
    with Holdfast(path) as hf:
        pass
    older = path.read_bytes()
    with Holdfast(path) as hf:

        def harm() -> None:
            with contextlib.closing(apsw.Connection(str(path))) as db:
                db.execute("SELECT * FROM events").fetchall()
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            assert 0 == Path(f"{path}-wal").stat().st_size
            now = path.stat().st_size
            content = older if size == "smaller" else older + bytes(now - len(older))
            path.write_bytes(content)

        desk.harm = harm
        with pytest.raises(HoldfastError):
            hf.run(desk.agent, id="r")
    assert ["first"] == desk.sent


@pytest.mark.parametrize(
    "harm",
    [delete, delete_the_database, rename, replace_by_an_empty_file],
    ids=lambda x: x.__name__,
)
def test_the_next_process_does_not_create_a_new_store_in_the_empty_folder(
    harm: Callable[[Path], None], desk: Desk, path: Path
) -> None:
    with Holdfast(path) as hf:
        desk.harm = lambda: harm(path)
        with pytest.raises(StoreReplaced):
            hf.run(desk.agent, id="r")
    desk.harm = None

    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"a\.db-reserve"):
            Holdfast(path)
    assert ["first"] == desk.sent
    Path(f"{path}-reserve").unlink()  # as the message says
    for suffix in SUFFIXES:
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    with Holdfast(path) as hf:
        assert [] == hf.runs()


def test_a_store_that_was_emptied_is_damaged_also_by_its_log_alone(path: Path) -> None:
    """A process was killed, its write-ahead log is there, and the database has no bytes."""
    with Holdfast(path) as hf:
        hf.store.examine()
        for suffix in SUFFIXES:
            shutil.copy(f"{path}{suffix}", f"{path}.copy{suffix}")
    copy = path.with_name("a.db.copy")
    assert Path(f"{copy}-wal").stat().st_size and not Path(f"{copy}-reserve").exists()
    copy.write_bytes(b"")

    with pytest.raises(StoreDamaged, match=r"a\.db\.copy-wal"):
        Holdfast(copy)
    assert 0 == copy.stat().st_size


def test_an_empty_file_with_nothing_next_to_it_is_a_new_store(path: Path) -> None:
    """As `mktemp` makes one."""
    path.touch(mode=0o600)

    with Holdfast(path) as hf:
        assert [] == hf.runs()


def test_a_reader_reports_a_removed_store(path: Path) -> None:
    with Holdfast(path) as hf:
        assert [] == hf.runs()
        delete(path)
        with pytest.raises(StoreReplaced):
            hf.runs()


def test_a_call_that_runs_while_the_store_is_deleted_is_the_last_one(
    path: Path,
) -> None:
    """The renewal of the lease notices it: the run is stopped before the call has ended."""
    begun, deleted = threading.Event(), threading.Event()
    calls: list[str] = []

    @tool
    def slow() -> str:
        begun.set()
        assert deleted.wait(60)
        return "done"

    @tool
    def after() -> None:
        calls.append("after")

    @agent
    def two(run: Run) -> None:
        with contextlib.suppress(Exception):
            slow()
        after()

    with Holdfast(path, options=Options(lease_seconds=3)) as hf:
        caught: list[BaseException] = []

        def execute() -> None:
            try:
                hf.run(two, id="r")
            except HoldfastError as error:
                caught.append(error)

        thread = threading.Thread(target=execute)
        thread.start()
        assert begun.wait(60)
        (session,) = hf.engine.leases.sessions()
        delete(path)
        eventually(lambda: session.stop_signal is not None)
        deleted.set()
        thread.join()
    assert [StoreReplaced] == [type(error) for error in caught]
    assert [] == calls


def test_a_process_that_changes_its_folder_keeps_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path means the folder in which the store was opened, also for what is opened later."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with contextlib.closing(SQLiteStore("a.db")) as store:
        os.chdir(tmp_path / "other")
        hf = Holdfast(store)
        hf.run(Desk(tmp_path / "a.db").agent, id="r")
        assert ["r"] == [row.id for row in hf.runs()]
        hf.close()
    assert [] == list((tmp_path / "other").iterdir())


def test_a_store_behind_a_symbolic_link_is_the_file_that_the_link_names(
    tmp_path: Path, desk: Desk
) -> None:
    """SQLite keeps its own files next to the real one; a link that names another file is another store."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Holdfast(tmp_path / name / "real.db").close()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "one" / "real.db")
    with Holdfast(link) as hf:
        hf.run(desk.agent, id="r")

        def turn() -> None:
            link.unlink()
            link.symlink_to(tmp_path / "two" / "real.db")

        desk.harm = turn
        with pytest.raises(StoreReplaced):
            hf.run(desk.agent, id="other")
    assert ["first", "second", "first"] == desk.sent


def test_the_store_of_a_forked_child_must_be_the_one_its_parent_opened(path: Path) -> None:
    """Around a fork all connections are closed: what is opened afterwards is compared, too."""
    with Holdfast(path) as hf:
        Holdfast(path.with_name("b.db")).close()
        hf.store._connections.before_fork()  # type: ignore[attr-defined]
        path.with_name("b.db").replace(path)
        hf.store._connections.after_fork_in_parent()  # type: ignore[attr-defined]
        with pytest.raises(StoreReplaced):
            hf.runs()
        with pytest.raises(StoreReplaced):
            hf.signal("r", "go")


@pytest.fixture(autouse=True)
def _folder_comes_back(tmp_path: Path) -> Iterator[None]:
    yield
    moved = tmp_path.with_name("moved")
    if moved.exists():
        shutil.rmtree(tmp_path, ignore_errors=True)
        moved.rename(tmp_path)
