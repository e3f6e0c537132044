"""Tools for testing agents and stores: a manual clock, a scripted model, mocks,
Gherkin specs, the crash explorer, and the conformance suite for stores.

Names are loaded when they are first used, so that the pytest plugin costs nothing until a test
uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agents.models import ScriptedModel, call, say
    from holdfast.runtime.declare.mocks import MockFailure, MockMissing
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.crash import CrashReport, Fault
    from holdfast.testing.scenario import ScenarioSetup
    from holdfast.testing.step_matcher import Outcome, sentence
    from holdfast.testing.store_suite import Bench, check_store, store_checks

__all__ = [
    "Bench",
    "CrashReport",
    "Fault",
    "ManualClock",
    "MockFailure",
    "MockMissing",
    "Outcome",
    "ScenarioSetup",
    "ScriptedModel",
    "call",
    "check_store",
    "say",
    "sentence",
    "store_checks",
]

_HOME_OF = {
    "Bench": "testing.store_suite", "Fault": "testing.crash", "ManualClock": "testing.clock",
    "MockFailure": "runtime.declare.mocks", "MockMissing": "runtime.declare.mocks", "Outcome": "testing.step_matcher",
    "ScenarioSetup": "testing.scenario", "CrashReport": "testing.crash", "ScriptedModel": "agents.models",
    "call": "agents.models", "check_store": "testing.store_suite", "say": "agents.models",
    "sentence": "testing.step_matcher", "store_checks": "testing.store_suite",
}  # fmt: skip

if not TYPE_CHECKING:  # a type checker should see the imports above, and complain of any other name

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"holdfast.{home}"), name)
        return found
