"""The command line. Its verbs are in `verbs.py`, which is loaded when the garbage collector is off."""

from __future__ import annotations

import gc


def main() -> None:
    """The command `holdfast`."""
    # What imports create is kept: looking for garbage in it meanwhile takes a tenth of the start.
    gc.disable()
    from holdfast.cli.verbs import cli

    try:
        cli(prog_name="holdfast")
    finally:
        gc.freeze()  # nor does the interpreter look for garbage when it ends
