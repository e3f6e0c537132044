"""What an agent is given: `run`, its memory and messages, and the decorators."""
