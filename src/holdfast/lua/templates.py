"""`{state.k}`, `{input.k}`, `{params.k}` and `{prepared.k}` in prompts and messages.

Other braces are text: prompts often contain JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast import Run

_FIELD: Final = r"\{(state|input|params|prepared)((?:\.\w+)+)\}"


def render(run: Run, template: str, values: Mapping[str, Any] | None = None) -> str:
    """Fill in a template. A name of the input that is not known is an error; unset state is empty."""

    def filled(token: re.Match[str]) -> str:
        root, path = token[1], token[2]
        if root == "prepared":
            value: Any = (values or {}).get(root)
            for key in path.removeprefix(".").split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            from holdfast.core.dialogue import text_of  # here, as most files ask no model

            return text_of(value)
        return run.format(f"{{{'input' if root == 'params' else root}{path}}}")

    return re.sub(_FIELD, filled, template)


def names_in(template: str, root: str) -> list[str]:
    """The first keys after a root in a template: what `validate` compares with the declared input."""
    return [path.split(".")[1] for found, path in re.findall(_FIELD, template) if found == root]
