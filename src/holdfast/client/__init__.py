"""A client of `holdfast serve`: start, watch and steer runs from a program that has no access to the database.

    from holdfast.client import Client

    with Client("https://holdfast.example.com", token="hf_…") as hf:
        run = hf.start("recap", id="recap-sam", recipient_email="sam@example.com")
        print(run.result())

Methods have the names, the results and the errors of `Holdfast`. Work is done by workers: nothing is executed here, so
there is no `worker`, `drive`, `replay` or `check`. Who decides is whose token it is, so there is no `by`.

- `calls.py` each method as a request and how its answer is read     - `sync.py`, `aio.py` the two clients

Needs the extra `client`.
"""

from holdfast.client.aio import AsyncClient, AsyncRemoteRun
from holdfast.client.sync import Client, RemoteRun

__all__ = ["AsyncClient", "AsyncRemoteRun", "Client", "RemoteRun"]
