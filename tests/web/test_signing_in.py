"""Who may come in, and how (FAULTS G 100, 102, 103, 109, 111)."""

from __future__ import annotations

from starlette.testclient import TestClient

from support.web import TOKENS


def test_a_page_shows_who_is_signed_in_by_a_token(client: TestClient) -> None:
    assert "ada (admin)" in client.get("/").text


def test_without_a_credential_a_page_leads_to_the_sign_in_and_back(client: TestClient) -> None:
    client.headers.pop("authorization")
    found = client.get("/?x=1", follow_redirects=False)
    assert (303, "/login?next=%2F%3Fx%3D1") == (found.status_code, found.headers["location"])
    wrong = client.post("/login", data={"token": "hf_wrong"})
    assert (401, True) == (wrong.status_code, "not valid" in wrong.text)
    right = client.post(
        "/login?next=%2F%3Fx%3D1", data={"token": TOKENS["approver"]}, follow_redirects=False
    )
    assert (303, "/?x=1") == (right.status_code, right.headers["location"])
    assert "ann (approver)" in client.get("/").text
