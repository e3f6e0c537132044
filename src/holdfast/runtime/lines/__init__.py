"""The tasks of an async agent: what each is doing, and in which order they continue."""
