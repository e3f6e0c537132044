"""What the authors of Holdfast test with, for everybody: a manual clock, and a suite for stores."""

from holdfast.testing.clock import ManualClock
from holdfast.testing.store_suite import Bench, check_store, store_checks

__all__ = ["Bench", "ManualClock", "check_store", "store_checks"]
