"""The built-in sentences of a spec.

`step_matcher` defines what a sentence is. Each function in `setup` (Given, When), `calls`, `values` and `run` (Then)
is one: the list of what a spec can contain is these files, read from top to bottom.
"""

from __future__ import annotations

from holdfast.testing.builtin_steps import calls, run, setup, values
from holdfast.testing.step_matcher import StepPattern, sentences_in


def builtin_sentences() -> list[StepPattern]:
    """All sentences of this package."""
    return [found for module in (setup, calls, values, run) for found in sentences_in(vars(module))]
