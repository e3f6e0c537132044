"""Tools for testing agents and stores: a manual clock, a scripted model, mocks,
Gherkin specs, the crash explorer, and the conformance suite for stores.

Names are loaded when they are first used, so that the pytest plugin costs nothing until a test
uses it.
"""

from typing import TYPE_CHECKING, Final

from holdfast.lazy import on_first_use

if TYPE_CHECKING:
    from holdfast.agents.models import ScriptedModel, call, say
    from holdfast.runtime.declare.mocks import MockFailure, MockMissing
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.crash import CrashReport
    from holdfast.testing.crash_faults import Fault
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

_HOMES: Final = {
    "holdfast.agents.models": ("ScriptedModel", "call", "say"),
    "holdfast.runtime.declare.mocks": ("MockFailure", "MockMissing"),
    "holdfast.testing.clock": ("ManualClock",),
    "holdfast.testing.crash": ("CrashReport",),
    "holdfast.testing.crash_faults": ("Fault",),
    "holdfast.testing.scenario": ("ScenarioSetup",),
    "holdfast.testing.step_matcher": ("Outcome", "sentence"),
    "holdfast.testing.store_suite": ("Bench", "check_store", "store_checks"),
}

if not TYPE_CHECKING:  # a type checker should see the imports above, and complain of any other name
    __getattr__ = on_first_use(__name__, _HOMES)
