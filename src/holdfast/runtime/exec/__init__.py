"""Whole runs: claim, execute, suspend, undo and replay them; workers, leases and schedules."""
