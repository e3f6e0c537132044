"""A run in memory: its log as far as it is read, the writer of its log, its lease, its ancestors."""
