"""A deployment that needs a person's approval.

Building and testing need no approval. Deploying is an external action, and this agent may not take one
without approval: the run is suspended, for minutes or for weeks. What the person
approves is exactly what will be called, and her yes counts once.

    python examples/deploy.py            # a person approves
    python examples/deploy.py --reject   # a person rejects
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from holdfast import Holdfast, Rejected, Run, RunWaiting, agent, step, tool

HOME = Path(tempfile.mkdtemp(prefix="deploy-"))


@step
def build(commit: str) -> str:
    print(f"    building {commit}")
    return f"shop:{commit[:7]}"


@step
def run_tests(image: str) -> dict[str, int]:
    print(f"    testing {image}")
    return {"passed": 214, "failed": 0}


@tool(risk="external_action")
def deploy(image: str, environment: str, idempotency_key: str = "") -> str:
    print(f"    deploying {image} to {environment}")
    return f"https://{environment}.example.com"


@agent(stages=("building", "deploying", "live", "stopped"), approve=("external_action",))
def release(run: Run, commit: str) -> str:
    run.plan(["build", "test", "deploy"])
    run.stage = "building"
    with run.doing("build"):
        image = build(commit)
    with run.doing("test"):
        tests = run_tests(image)
    run.decide("go", tests["failed"] == 0, why=f"{tests['passed']} tests passed")

    run.stage = "deploying"
    try:
        with run.doing("deploy"):
            url = deploy(image, environment="production")  # waits here until a person has decided
    except Rejected as no:
        run.stage = "stopped"
        return f"not deployed: {no.message}"
    run.stage = "live"
    return url


def main() -> None:
    url = os.environ.get("HOLDFAST_URL") or HOME / "holdfast.db"
    with Holdfast(url) as hf:
        print("A worker claims the release:")
        try:
            hf.run(release, id="release-7", commit="4fd8a01c9e")
        except RunWaiting as waiting:
            print(f"  {waiting}")

    print("That process is gone. Later, a person decides:")
    with Holdfast(url) as hf:
        state = hf.get("release-7")
        plan = ", ".join(f"{step.name}: {step.status}" for step in state.plan)
        print(f"  stage {state.stage}; {plan}")
        request = state.waits[0]
        print(f"  asks to call {request.tool} with {hf.value('release-7', request.show)}")
        if "--reject" in sys.argv:
            hf.reject("release-7", by="ann", why="not before the weekend")
        else:
            hf.approve("release-7", by="ann", why="looks right")

    print("Any worker continues from there:")
    with Holdfast(url) as hf:
        print(f"  {hf.run(release, id='release-7', commit='4fd8a01c9e')}")
        print(f"  stage {hf.get('release-7').stage}")


if __name__ == "__main__":
    main()
