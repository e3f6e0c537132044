"""The server (`holdfast serve`): pages for people and an HTTP API for programs, over `control` and `views` only.

- `app.py` puts the application together; other ASGI applications can mount it
- `auth.py` who sends a request; `credentials.py` the credentials file; `sessions.py` people who are signed in
- `guard.py` what every request passes: hosts, origins, limits, headers; `problems.py` errors as problem+json
- `api/` the HTTP API; `pages/` the pages; `feed.py` watches logs for all viewers; `server.py` listens

Importing this package does not import Starlette (extra `web`). Not here: the command line (`holdfast.cli.serve`), the
operations of the API as data (`holdfast.api`), which the client shares.
"""
