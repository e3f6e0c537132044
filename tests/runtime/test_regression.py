"""A store that forgets what it acknowledged: the run stops and says so, and nothing is done twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Run, agent, tool
from holdfast.errors import LogRegressed

PAID: list[int] = []


def forget(path: str, after: int) -> None:
    """As if the file had been restored from an older copy, under the feet of the worker.

    By another process: two copies of SQLite in one would take each other's locks away.
    """
    code = (
        "import apsw, sys; db = apsw.Connection(sys.argv[1]); "
        "db.execute('DELETE FROM events WHERE seq > ?', (int(sys.argv[2]),)); db.close()"
    )
    subprocess.run([sys.executable, "-c", code, path, str(after)], check=True)


@tool
def pay(amount: int, path: str, forget_after: int) -> int:
    PAID.append(amount)
    if forget_after >= 0:
        forget(path, forget_after)
    return amount


@agent
def paying(run: Run, path: str) -> Any:
    pay(1, path, -1)
    pay(2, path, 2)  # the intent of this payment, and all of the first one but its intent
    return pay(3, path, -1)


def test_a_run_whose_log_became_shorter_stops_and_is_not_claimed_again(tmp_path: Path) -> None:
    PAID.clear()
    path = str(tmp_path / "h.db")
    with Holdfast(path, agents=[paying]) as hf:
        with pytest.raises(LogRegressed, match="from event 3 on"):
            hf.run(paying, id="r", path=path)

        row = hf.store.get("r")
        assert row is not None and row.status == "quarantined"
        assert "lost acknowledged events" in row.waiting_for
        assert hf.worker().run(once=True) == 0
        assert PAID == [1, 2]
