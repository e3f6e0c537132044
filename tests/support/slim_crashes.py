"""For the small process (`slim.py`): let the crash explorer loose on an agent of tests/testing."""

from __future__ import annotations

import importlib
from dataclasses import asdict
from typing import Any

from holdfast.runtime.declare.mocks import mocks_of
from holdfast.testing.crash import explore
from holdfast.testing.scenario import Reaction, ScenarioAction, ScenarioSetup


def explored(
    module: str,
    agent: str,
    mocks: dict[str, Any],
    answers: list[list[Any]],
    may_doubt: list[str],
    input: dict[str, Any],
) -> dict[str, Any]:
    """The explorer's report, as plain values."""
    setup = ScenarioSetup(
        getattr(importlib.import_module(module), agent),
        input,
        mocks_of(mocks),
        [Reaction(*one) for one in answers],
        [ScenarioAction("go")],
        set(may_doubt),
    )
    return asdict(explore(setup))
