"""Requests generated from the OpenAPI document, valid and invalid: every answer is one that the document describes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast import Holdfast, RunWaiting
from holdfast.web.api.openapi import openapi
from holdfast.web.app import create_app
from holdfast.web.context import ClientLimits
from support.web import AGENTS, TOKENS, credentials, job, patient, serving

schema = schemathesis.openapi.from_dict(openapi()).exclude(operation_id="import")
"""(It knows no bodies of lines.)"""
EXAMPLES = 200 if hypothesis.settings.get_current_profile_name() == "nightly" else 4
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with two runs; without a rate limit, which these requests would meet."""
    folder: Path = tmp_path_factory.mktemp("schema")
    with Holdfast(folder / "h.db", agents=AGENTS) as hf:
        hf.register()
        hf.run(job, id="done")
        with pytest.raises(RunWaiting):
            hf.run(patient, id="waiting")
        limits = ClientLimits(requests_per_second=100_000, requests_burst=100_000)
        with serving(create_app(hf, credentials=credentials(), limits=limits)) as found:
            yield found


@schema.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
def test_every_answer_is_described(case: Any, url: str) -> None:
    if case.operation.label.endswith("/stream"):
        case.path_parameters["run_id"] = "done"  # that of a run that waits does not end
    elif "run_id" in (case.path_parameters or {}) and len(case.path_parameters["run_id"]) % 2:
        case.path_parameters["run_id"] = "waiting"
    if case.query and "wait" in case.query:
        del case.query["wait"]
    headers = {"authorization": f"Bearer {TOKENS['admin']}"}
    answer = case.call(base_url=url, headers=headers)
    case.validate_response(answer, checks=CHECKS)
