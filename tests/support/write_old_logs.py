"""Writes the logs in `tests/runtime/logs_0_1`: each agent of `old_logs` once to its end, and once for each place at
which its process dies; with some, a second process dies too.

    git archive 552a3a1 src | tar x -C V01
    PYTHONPATH=V01/src:tests python -m support.write_old_logs FOLDER

Only the code of 0.1 may write them. A log that has the shape of one that is kept already is not kept.
"""

from __future__ import annotations

import base64
import json
import lzma
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast import Holdfast, Options
from holdfast.core.fold import fold
from holdfast.core.state import RunState
from support.old_logs import DONE, SCENARIOS, execute
from support.postgres import PostgresServer
from support.waiting import eventually

DEATHS_MAX = 400
LEASE_SECONDS = 0.3
ROW = (
    "agent",
    "status",
    "epoch",
    "due_at",
    "waiting_for",
    "input_digest",
    "code_version",
    "parent",
)


def live(url: str, name: str, die_at: int, report_file: Path) -> bool:
    """Execute a scenario in a process that is killed at its n-th boundary (0: not); whether it was killed."""
    if report_file.exists():
        DONE[:] = json.loads(report_file.read_text("utf-8"))["done"]
        # 0.1 does not see that the owner of a lease is dead.
        free_at = time.monotonic() + LEASE_SECONDS
        eventually(lambda: time.monotonic() > free_at, "the lease has expired")
    pid = os.fork()
    if pid == 0:
        count = 0

        def boundary(_: str) -> None:
            nonlocal count
            count += 1
            if count == die_at:
                report_file.write_text(json.dumps({"done": DONE}), "utf-8")
                os.kill(os.getpid(), signal.SIGKILL)

        scenario = SCENARIOS[name]
        options = Options(boundary=boundary, lease_seconds=LEASE_SECONDS)
        try:
            with Holdfast(url, agents=[scenario.agent, *scenario.others], options=options) as hf:
                result = execute(hf, name)
            report_file.write_text(json.dumps({"done": DONE, "result": result}), "utf-8")
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), f"{name}, {die_at}: {status}"
    return status != 0


def exported(hf: Holdfast, run_id: str, row: Any) -> dict[str, Any]:
    """A run as data: its row, its log, and what is kept next to it."""
    records = hf.store.read(run_id)
    text = " ".join(r.data.decode() for r in records)
    blobs = {
        h: hf.store.blob(run_id, h) for h in sorted(set(re.findall(r"\b[0-9a-f]{32}\b", text)))
    }
    keys = {key: hf.store.find_key(key) for key in set(re.findall(r'"key":"([^"]+)"', text))}
    return {
        "id": run_id,
        "row": {name: getattr(row, name) for name in ROW},
        "state": json.loads(msgspec.json.encode(fold(RunState(), records))),
        "keys": [[key, at[1]] for key, at in keys.items() if at is not None],
        "blobs": {h: base64.b64encode(data).decode() for h, data in blobs.items() if data},
        "log": [[r.time, r.epoch, r.kind, r.data.decode(), r.hash.hex()] for r in records],
    }


def case_of(url: str, name: str, deaths: tuple[int, ...], report_file: Path) -> dict[str, Any]:
    with Holdfast(url) as hf:
        runs = [exported(hf, row.id, row) for row in reversed(hf.runs())]
    return {
        "scenario": name,
        "deaths": deaths,
        **json.loads(report_file.read_text("utf-8")),
        "runs": runs,
    }


def shape(case: dict[str, Any]) -> Any:
    """What two logs have in common that differ only in times, hashes and chance."""
    runs = [(run["id"], run["row"]["status"], [e[2] for e in run["log"]]) for run in case["runs"]]
    return json.dumps(runs)


def cases(name: str, server: PostgresServer | None) -> Iterator[dict[str, Any]]:
    def one(*deaths: int) -> tuple[dict[str, Any], bool]:
        """A run whose processes die at these boundaries, and whether all of them did."""
        DONE.clear()
        with tempfile.TemporaryDirectory(dir="/dev/shm") as home:
            url, told = str(Path(home) / "runs.db"), Path(home) / "told"
            if server is not None:
                url = server.dsn(server.create_database())
            lives = [live(url, name, die_at, told) for die_at in deaths]
            return case_of(url, name, deaths, told), all(lives)

    yield one(0)[0]
    for first in range(1, DEATHS_MAX):
        case, died = one(first)
        if not died:
            break
        yield case
        if first % 5 == 0:
            for second in range(2, 60, 6):
                case, died = one(first, second)
                if not died:
                    break
                yield case


def main(folder: Path, names: list[str]) -> None:
    assert "0.1" in holdfast.__version__, holdfast.__file__
    with PostgresServer() as server:
        for name in names or SCENARIOS:
            write(folder, name, None)
            if SCENARIOS[name].both_stores:
                write(folder, name, server)


def write(folder: Path, name: str, server: PostgresServer | None) -> None:
    kept: dict[str, dict[str, Any]] = {}
    for case in cases(name, server):
        kept.setdefault(shape(case), case)
    file = folder / f"{name}{'-postgres' if server else ''}.jsonl.xz"
    lines = "".join(json.dumps(case) + "\n" for case in kept.values())
    file.write_bytes(lzma.compress(lines.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{file.name}: {len(kept)} logs, {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
