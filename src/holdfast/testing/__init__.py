"""What the authors of Holdfast test with, for everybody: a manual clock, mocks, specs in Gherkin, the
crash explorer, and a suite for stores.

Names are loaded when they are first used, so that the pytest plugin costs nothing where nobody asks
for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.crash import Fault, Report
    from holdfast.testing.mocks import MockFailure, MockMissing
    from holdfast.testing.play import Play
    from holdfast.testing.sentences import Outcome, sentence
    from holdfast.testing.store_suite import Bench, check_store, store_checks

__all__ = [
    "Bench",
    "Fault",
    "ManualClock",
    "MockFailure",
    "MockMissing",
    "Outcome",
    "Play",
    "Report",
    "check_store",
    "sentence",
    "store_checks",
]

_HOME_OF = {
    "Bench": "store_suite", "Fault": "crash", "ManualClock": "clock", "MockFailure": "mocks",
    "MockMissing": "mocks", "Outcome": "sentences", "Play": "play", "Report": "crash",
    "check_store": "store_suite", "sentence": "sentences", "store_checks": "store_suite",
}  # fmt: skip

if not TYPE_CHECKING:  # a type checker shall see the imports above, and complain of any other name

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"holdfast.testing.{home}"), name)
        return found
