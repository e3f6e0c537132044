"""The pytest plugin: there for those who ask, unnoticed by all others."""

import subprocess
import sys
from pathlib import Path

from holdfast import Holdfast, Run, agent, step
from holdfast.testing import ManualClock


@step
def one() -> int:
    return 1


@agent
def quick(run: Run) -> int:
    return one()


@agent
def sleeper(run: Run) -> int:
    run.sleep(3)
    return one()


def test_the_fixture_holdfast_runs_agents_on_a_store_of_its_own(holdfast: Holdfast) -> None:
    assert [] == holdfast.runs()
    assert 1 == holdfast.run(quick, id="a")
    assert ["a"] == [row.id for row in holdfast.runs()]


def test_on_the_manual_clock_nothing_is_slept(
    holdfast: Holdfast, manual_clock: ManualClock
) -> None:
    began = manual_clock.now()

    assert 1 == holdfast.run(sleeper, id="a")
    assert 3_000_000 <= manual_clock.now() - began < 4_000_000


def test_a_test_run_that_does_not_ask_imports_nothing_of_the_runtime(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_nothing_is_loaded():\n"
        "    assert 'holdfast.testing.plugin' in sys.modules\n"
        "    loaded = [m for m in sys.modules if m.startswith('holdfast')]\n"
        "    assert sorted(loaded) == ['holdfast', 'holdfast.lazy', 'holdfast.testing', 'holdfast.testing.plugin'], loaded\n"
        "    assert not {'apsw', 'msgspec', 'gherkin'} & set(sys.modules)\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:schemathesis",  # plugins of others cost seconds, and have no part in this
        "-p",
        "no:langsmith_plugin",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)

    assert 0 == done.returncode, done.stdout + done.stderr
