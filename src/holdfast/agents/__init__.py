"""What people build on the flow: typed agent state, loops, agents that talk to a model."""
