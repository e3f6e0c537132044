"""What a test leaves open is found in that test: an event loop, a socket, a connection, a process.

Python warns of them when they are collected, and warnings are errors here. Objects that refer to each other
are collected at some later moment, so that a test fails which has nothing to do with it, once in a while.
Hence a collection after every test, made cheap: what was there before is not looked at. (It costs a
millisecond; and the collections that Python makes by itself become cheaper by more than that.)
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

_apart = {"modules": 0}


@pytest.fixture(autouse=True)
def _leaks_are_found_here() -> Iterator[None]:
    """The first fixture of every test, and so the last one that ends."""
    _set_apart_what_stays()
    yield
    gc.collect()


def _set_apart_what_stays() -> None:
    """Modules are what stays: when there are new ones, all that there is now is left alone from here on."""
    if len(sys.modules) != _apart["modules"]:
        gc.collect()
        gc.freeze()
        _apart["modules"] = len(sys.modules)
