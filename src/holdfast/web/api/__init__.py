"""The HTTP API: routes made of the table of operations (`holdfast.api.operations`).

- `routes.py` decodes requests, checks roles and encodes responses     - `handlers.py` what each operation does
- `events.py` server-sent events     - `ranges.py` bytes with range requests     - `openapi.py` the document
"""
