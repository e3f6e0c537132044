"""Power loss, rebuilt from a trace of system calls: no special kernel, no special disk.

`record` runs processes under strace and keeps every write, sync, truncation, creation and removal
below one folder, with all bytes, in order, and the acknowledgements among them. `crashes` then goes
through the trace and, after every call, builds what a disk may hold if power fails just then:

    none    only what was synced
    all     everything that was written (this is also what a SIGKILL leaves)
    half    what was synced, and a random half of the rest, in any combination
    torn    everything, but the last write is truncated

The model is harsh where POSIX is: a file's bytes are sure after an fsync of the file, its name
after an fsync of the folder. A failed fsync promises nothing, and what it failed to write stays
unwritten even if a later fsync succeeds (as Linux does). What strace cannot see is left out:
`-shm` is memory and does not outlive the machine, the reserve holds no data.
"""

import copy
import hashlib
import random
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

CALLS = (
    "openat,creat,pwrite64,pwritev,write,fsync,fdatasync,ftruncate,unlink,unlinkat,rename,renameat2"
)
IGNORED = ("-shm", "-reserve")
SECTOR_BYTES = 512
VARIANTS = ("none", "all", "half", "torn")

STRACE = shutil.which("strace")


class Op(NamedTuple):
    """One system call that matters. `failed` is only kept for syncs: other failures do nothing."""

    call: str  # create, write, truncate, sync, sync_folder, unlink, ack
    name: str = ""
    offset: int = 0
    data: bytes = b""
    failed: bool = False


# -- recording -----------------------------------------------------------------------------------


class Process(NamedTuple):
    """A command to be traced; `inject` is an option of strace, as in `fdatasync:error=EIO:when=9`."""

    command: Sequence[str]
    inject: str = ""


def record(
    folder: Path, acks: Path, processes: Iterable[Process], *, trace: Path, env: dict[str, str]
) -> list[Op]:
    """Run the processes one after the other; every call that touched `folder`, and every ack."""
    assert STRACE is not None
    ops: list[Op] = []
    known: set[str] = set()
    for process in processes:
        # The filter makes strace three times faster, but it does not know injection.
        options = ["-e", f"inject={process.inject}"] if process.inject else ["--seccomp-bpf"]
        subprocess.run(
            [
                STRACE,
                "-f",
                "-y",
                "-xx",
                "-s",
                "10000000",
                "-qq",
                "-e",
                f"trace={CALLS}",
                "-e",
                "signal=none",
                *options,
                "-o",
                str(trace),
                *process.command,
            ],
            check=True,
            env=env,
            stdout=subprocess.DEVNULL,
        )
        with trace.open() as lines:
            for line in lines:
                op = _parse(line, folder.resolve(), acks.resolve(), known)
                if op is not None:
                    ops.append(op)
    trace.unlink()
    return ops


_CALL = re.compile(r"\d+ +(\w+)\((.*)\) += (-?\d+)")
_FILE = re.compile(r"^-?\w+<((?:\\x..)*)>")  # 4</path>, as strace -y shows a descriptor
_TEXT = re.compile(r'"((?:\\x..)*)"(\.\.\.)?')


def _parse(line: str, folder: Path, acks: Path, names: set[str]) -> Op | None:
    match = _CALL.match(line)
    if match is None:
        assert "unfinished" not in line, f"a second thread wrote: {line[:200]}"
        return None
    call, arguments, result = match[1], match[2], int(match[3])
    text = _TEXT.search(arguments)
    if call in ("openat", "creat", "unlink", "unlinkat", "rename", "renameat2"):
        assert text is not None
        return _parse_name(call, Path(_bytes(text[1]).decode()), arguments, folder, names, result)
    file = _FILE.match(arguments)
    if file is None:
        return None
    path = Path(_bytes(file[1]).decode())
    if path == acks:
        assert text is not None
        return Op("ack", data=_bytes(text[1]))
    if path == folder and "sync" in call:
        return Op("sync_folder", failed=result < 0)
    if path.parent != folder or path.name.endswith(IGNORED):
        return None
    if "sync" in call:
        return Op("sync", path.name, failed=result < 0)
    if result < 0:
        return None
    if call == "ftruncate":
        return Op("truncate", path.name, int(arguments.rsplit(",", 1)[1]))
    assert call == "pwrite64", f"{call} is not expected on {path}"
    assert text is not None
    assert not text[2], "strace cut the data"
    return Op("write", path.name, int(arguments.rsplit(",", 1)[1]), _bytes(text[1])[:result])


def _parse_name(
    call: str, path: Path, arguments: str, folder: Path, names: set[str], result: int
) -> Op | None:
    if path.parent.resolve() != folder or path.name.endswith(IGNORED) or result < 0:
        return None
    if call == "unlink":
        names.discard(path.name)
        return Op("unlink", path.name)
    assert call == "openat", f"{call} is not expected on {path}"
    if "O_CREAT" in arguments and path.name not in names:
        names.add(path.name)
        return Op("create", path.name)
    return None


def _bytes(hexed: str) -> bytes:
    return bytes.fromhex(hexed.replace("\\x", ""))


# -- the disk ------------------------------------------------------------------------------------


@dataclass
class File:
    """What a file surely holds, and what was done to it since, in order."""

    sure: bytearray = field(default_factory=bytearray)
    pending: list[Op] = field(default_factory=list)


@dataclass
class Disk:
    """One folder: which files its entries name, surely and now."""

    now: dict[str, File] = field(default_factory=dict)
    sure: dict[str, File] = field(default_factory=dict)

    def apply(self, op: Op) -> None:
        match op.call:
            case "create":
                self.now[op.name] = File()
            case "unlink":
                del self.now[op.name]
            case "sync_folder" if not op.failed:
                self.sure = dict(self.now)
            case "write" | "truncate" if op.name in self.now:
                self.now[op.name].pending.append(op)
            case "sync" if op.name in self.now:
                file = self.now[op.name]
                for done in () if op.failed else file.pending:
                    _write(file.sure, done)
                file.pending = []

    def after_crash(self, variant: str, chance: random.Random) -> dict[str, bytearray]:
        """The folder's files as the next boot finds them."""
        entries = self.sure if variant == "none" else self.now
        if variant == "half":
            names = sorted(self.sure.keys() | self.now.keys())
            either = {name: chance.choice((self.sure, self.now)).get(name) for name in names}
            entries = {name: file for name, file in either.items() if file is not None}
        return {name: _survivor(file, variant, chance) for name, file in entries.items()}

    def is_settled(self) -> bool:
        """Whether every variant would be the same."""
        return self.sure == self.now and not any(file.pending for file in self.now.values())


def _survivor(file: File, variant: str, chance: random.Random) -> bytearray:
    content = copy.copy(file.sure)
    pending = [] if variant == "none" else file.pending
    if variant == "half":
        pending = [op for op in pending if chance.random() < 0.5]
    if variant == "torn" and pending:
        pending = [*pending[:-1], _torn(pending[-1])]
    for op in pending:
        _write(content, op)
    return content


def _torn(op: Op) -> Op:
    """The first half of a write: whole sectors if it has several, else any bytes."""
    half = len(op.data) // 2
    return op._replace(data=op.data[: half - half % SECTOR_BYTES or half])


def _write(content: bytearray, op: Op) -> None:
    if op.call == "truncate":
        del content[op.offset :]
        content.extend(bytes(op.offset - len(content)))
        return
    if op.offset > len(content):
        content.extend(bytes(op.offset - len(content)))
    content[op.offset : op.offset + len(op.data)] = op.data


# -- crashing ------------------------------------------------------------------------------------


class Crash(NamedTuple):
    """One state of the disk after power failed, and what had been acknowledged before."""

    point: int
    variant: str
    files: dict[str, bytearray]
    acks: bytes

    def __str__(self) -> str:
        return f"after call {self.point}, {self.variant}"

    def digest(self) -> bytes:
        """The same for the same files after the same acknowledgements, whenever power failed."""
        found = hashlib.blake2b(self.acks)
        for name, content in sorted(self.files.items()):
            found.update(f"\0{name} {len(content)}\0".encode())
            found.update(content)
        return found.digest()

    def put(self, folder: Path) -> None:
        """Make `folder` hold this state and nothing else."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def crashes(
    ops: Sequence[Op],
    *,
    seed: int,
    every: int = 1,
    first: int = 0,
    variants: Sequence[str] = VARIANTS,
) -> Iterator[Crash]:
    """The states after call `first` and every `every`-th one from there, each once; the seed fixes the
    chance."""
    disk = Disk()
    acks = b""
    seen: set[bytes] = set()
    for point, op in enumerate(ops):
        disk.apply(op)
        acks += op.data if op.call == "ack" else b""
        if point < first or (point - first) % every:
            continue
        for variant in variants[:1] if disk.is_settled() else variants:
            chance = random.Random(f"{seed} {point} {variant}")
            crash = Crash(point, variant, disk.after_crash(variant, chance), acks)
            digest = crash.digest()
            if digest not in seen:
                seen.add(digest)
                yield crash
