"""Benchmarks: every figure is a ratio taken in one run, next to the raw database doing the same work."""
