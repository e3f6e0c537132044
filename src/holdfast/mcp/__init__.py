"""An MCP server over a store: agents read the state of tasks, change it, and hand tasks to each other.

A task is a run. Its state is a resource, `state://agents/{agent_id}/tasks/{task_id}`; what can be done to it is
a set of tools. Over `control` and `views` only: no agent's code is loaded or executed here.

- `reach.py` who is connected, and which tasks it can see
- `uris.py` the resource URIs       - `documents.py` what a resource contains       - `cut.py` how much of it
- `resources.py`, `tools.py`, `subscriptions.py` the three parts of the protocol; `feed.py` watches the log
- `server.py` puts them together; `stdio.py` and `http.py` serve it; `clients.py` prints clients' configuration

Importing this package does not import the SDK (extra `mcp`). Not here: the command line (`holdfast.cli.mcp`).
"""
