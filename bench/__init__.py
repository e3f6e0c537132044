"""Benchmarks: every figure is a ratio taken in one run, beside the raw database doing the same work."""
