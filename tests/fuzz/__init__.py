"""A fuzzer: random agents, under random faults, checked against every promise. See `__main__.py`."""
