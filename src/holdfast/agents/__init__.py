"""Agents built on the runtime: typed agent state, loops, and agents that are driven by a model."""
