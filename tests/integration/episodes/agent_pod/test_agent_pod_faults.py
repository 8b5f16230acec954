"""Tests of faults around an agent pod, and of the outcome of its episodes."""

import hashlib
import io
import os
import shutil
import signal
import tarfile
from pathlib import Path as FilePath

import msgspec
import pytest

from dgym.wire import AttemptOutcome, EndReason, calls
from dgym.wire.assignments import AssignmentState
from dgym.wire.http import Role
from tests.fakes import impostor
from tests.fakes.pods import FILES
from tests.support.calc import BUGGY


async def test_a_store_that_is_away_loses_nothing(new_agent, pod, helpers):
    agent = new_agent()
    agent.results.write_text("a file, not a directory")
    await agent.start()
    status, body = await agent.call("GET", "/readyz")
    assert status == 503
    assert b"results directory" in body
    assert (await agent.report()).store_problem.startswith("the results directory")
    _, metrics = await agent.call("GET", "/metrics")
    assert b"dgym_agent_store_failures_total 1.0" in metrics
    await agent.put(helpers.assign(pod, helpers.repair, {"tool": "submit"}))
    await agent.until(lambda found: found.state is AssignmentState.STORE_UNAVAILABLE)
    agent.results.unlink()
    assert (await agent.over()).reason is EndReason.RESOLVED
    assert agent.result()["resolved"]
    assert pod.termination().result_uri == agent.folder().as_uri()


async def test_everything_is_stored_after_an_outage_of_the_store(new_agent, pod, tmp_path, helpers):
    agent = await new_agent().start()
    wait = helpers.bash("echo here > here.txt; until [ -e go ]; do sleep 0.02; done")
    await agent.put(helpers.assign(pod, wait, helpers.repair, {"tool": "submit"}))
    await helpers.wait(lambda: (pod.directory / "sandbox-files" / "here.txt").exists())
    await helpers.wait(lambda: agent.folder().exists() and len(agent.steps()) == 1)
    agent.results.rename(tmp_path / "away")
    agent.results.write_text("in the way")
    (pod.directory / "sandbox-files" / "go").write_text("")
    await agent.until(lambda found: found.state is AssignmentState.STORE_UNAVAILABLE)
    assert not pod.attempt.released.is_set()
    agent.results.unlink()
    (tmp_path / "away").rename(agent.results)
    assert (await agent.over()).reason is EndReason.RESOLVED
    assert [step["seq"] for step in agent.steps()] == [0, 1, 2, 3]
    assert "dgym_agent_store_failures_total" in (await agent.call("GET", "/metrics"))[1].decode()


async def test_an_outcome_is_reported_if_store_and_pod_are_gone(new_agent, pod, helpers):
    agent = new_agent(sandbox_silence_seconds=0.5, store_patience_seconds=0.1)
    agent.results.write_text("a file, not a directory")
    await agent.start()
    await agent.put(helpers.assign(pod, helpers.repair, {"tool": "submit"}))
    await agent.until(lambda found: found.state is AssignmentState.STORE_UNAVAILABLE)
    await pod.close()
    over = await agent.over()
    assert (over.state, over.reason, over.outcome.resolved) == (AssignmentState.FINISHED, EndReason.RESOLVED, True)
    assert over.outcome.result_uri == ""
    assert "could not be stored: the results directory" in over.cause


async def test_an_outcome_is_not_stored_after_a_recovery_gave_up_the_attempt(agent, new_agent, pod, helpers):
    late = new_agent()
    late.results.write_text("a file, not a directory")
    await late.start()
    await late.put(helpers.assign(pod, helpers.repair, {"tool": "submit"}))
    await late.until(lambda found: found.state is AssignmentState.STORE_UNAVAILABLE)
    gone = {"sidecar_url": "http://127.0.0.1:1", "mode": "recover", "epoch": 2}
    await agent.put(msgspec.structs.replace(helpers.assign(pod), **gone))
    nothing = await agent.over()
    assert (nothing.state, nothing.reason) == (AssignmentState.FAILED, EndReason.SANDBOX_LOST)
    late.results.unlink()
    late.results.symlink_to(agent.results)
    assert await late.until(lambda found: found is None) is None
    assert agent.result() == {"givenUp": True}


async def test_a_pod_that_does_not_answer_is_lost_and_nothing_is_stored(new_agent, new_pod, helpers):
    agent = await new_agent(sandbox_silence_seconds=0.5).start()
    pod = new_pod()
    pod.url = "http://127.0.0.1:1"
    await agent.put(helpers.assign(pod, {"tool": "submit"}))
    lost = await agent.over()
    assert (lost.state, lost.reason) == (AssignmentState.FAILED, EndReason.SANDBOX_LOST)
    assert not (agent.folder() / "result.json").exists()


async def test_a_pod_with_other_tokens_counts_as_lost(agent, pod, helpers):
    await agent.put(helpers.assign(pod, {"tool": "submit"}, drive_token="another"))
    lost = await agent.over()
    assert (lost.state, lost.reason) == (AssignmentState.FAILED, EndReason.SANDBOX_LOST)
    assert not pod.attempt.released.is_set()


@pytest.mark.attack("impostor")
async def test_a_program_of_the_sandbox_on_the_port_of_a_sidecar_that_has_ended(agent, new_pod, helpers):
    pod = new_pod()
    pod.start_runners()
    sidecar = pod.start_process()
    _, port = await pod.listening()
    await pod.ready()
    files = [*FILES.items(), ("impostor.py", FilePath(impostor.__file__).read_text())]
    source = {"files": [{"path": path, "content": content} for path, content in files]}
    attack = helpers.bash(f"python3 impostor.py {port} calls.txt")
    await agent.put(helpers.assign(pod, attack, {"tool": "submit"}, source=source))
    calls = pod.directory / "sandbox-files" / "calls.txt"
    await helpers.wait(calls.exists)
    runner = await helpers.wait(lambda: stopped(pod.runners["sandbox"].pid))
    sidecar.kill()  # as the kernel does when memory is exhausted
    lost = await agent.over()
    assert lost.state is AssignmentState.FAILED
    assert lost.outcome == AttemptOutcome(resolved=False, reason=EndReason.SANDBOX_LOST, message=lost.cause)
    assert "without the signature of the episode's sidecar" in lost.cause
    assert "/v1/steps/1" in calls.read_text()
    assert not (agent.folder() / "result.json").exists()
    os.kill(runner, signal.SIGCONT)


def stopped(pid):
    """Return a stopped descendant of ``pid``, or None."""
    for child in (int(each) for each in FilePath(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        state = FilePath(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        if found := child if state == "T" else stopped(child):
            return found
    return None


async def test_the_sidecar_ends_the_episode_at_its_deadline(agent, pod, helpers):
    forever = helpers.bash("until [ -e never ]; do sleep 0.02; done")
    await agent.put(helpers.assign(pod, forever, {"tool": "submit"}, remaining_seconds=0.5))
    over = await agent.over()
    assert (over.state, over.reason) == (AssignmentState.FINISHED, EndReason.DEADLINE_EXCEEDED)
    assert agent.result()["reason"] == "DeadlineExceeded"


async def test_a_cancelled_episode_is_stored_as_such(agent, pod, helpers):
    forever = helpers.bash("echo here > here.txt; until [ -e never ]; do sleep 0.02; done")
    await agent.put(helpers.assign(pod, forever, {"tool": "submit"}))
    await helpers.wait(lambda: (pod.directory / "sandbox-files" / "here.txt").exists())
    await pod.raw("POST", calls.CANCEL.path, role=Role.OPERATE)
    over = await agent.over()
    assert (over.state, over.reason) == (AssignmentState.FINISHED, EndReason.CANCELLED)
    assert pod.termination().reason is EndReason.CANCELLED


async def test_a_deleted_assignment_does_not_release_the_pod(agent, pod, helpers):
    forever = helpers.bash("echo here > here.txt; until [ -e go ]; do sleep 0.02; done")
    await agent.put(helpers.assign(pod, forever, helpers.repair, {"tool": "submit"}))
    await helpers.wait(lambda: (pod.directory / "sandbox-files" / "here.txt").exists())
    assert (await agent.delete())[0] == 200
    assert (await agent.delete())[0] == 200
    assert await agent.status() is None
    assert not pod.attempt.released.is_set()
    (pod.directory / "sandbox-files" / "go").write_text("")
    await agent.put(helpers.assign(pod, forever, helpers.repair, {"tool": "submit"}))
    assert (await agent.over()).steps == 3


@pytest.mark.parametrize(
    ("fields", "reason", "message"),
    [
        ({"setupCommands": ["exit 3"]}, EndReason.SETUP_FAILED, "exit 3"),
        ({"agent": {"name": "debug_agent", "model": "none"}}, EndReason.INVALID_SPEC, "none"),
        ({"tools": ("os:system",)}, EndReason.INVALID_SPEC, "installed tools"),
        ({"agent": {"name": "solution"}, "solution": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"}, None, "apply"),
    ],
)
async def test_a_permanent_failure_is_reported_and_releases_the_pod(agent, pod, helpers, fields, reason, message):
    await agent.put(helpers.assign(pod, {"tool": "submit"}, **fields))
    over = await agent.over()
    assert over.state is AssignmentState.FINISHED
    assert over.reason is (reason or EndReason.INVALID_SPEC)
    assert message in over.cause
    assert agent.result()["reason"] == over.reason.value
    assert pod.attempt.released.is_set()
    assert pod.termination().reason is over.reason


@pytest.fixture
def archive(web):
    """A repository in an archive on the web server."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, text in {"calc.py": BUGGY, "check.py": "import calc\n"}.items():
            entry = tarfile.TarInfo(f"calc-1.0/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    (web.root / "calc.tar.gz").write_bytes(stream.getvalue())
    return {"url": f"{web.url}/calc.tar.gz", "sha256": hashlib.sha256(stream.getvalue()).hexdigest()}


async def test_sources_are_fetched_from_allowed_hosts(agent, pod, web, archive, helpers):
    calls = (helpers.bash("ls"), {"tool": "submit"})
    await agent.put(helpers.assign(pod, *calls, source={"archive": archive}))
    over = await agent.over()
    assert over.state is AssignmentState.FINISHED, over.cause
    assert "calc.py" in agent.steps()[1]["observation"]["text"]
    assert web.requests == ["/calc.tar.gz"]


async def test_an_agent_that_takes_over_from_another_fetches_no_source_for_an_external_driver(
    new_agent, pod, web, archive, helpers
):
    assignment = helpers.assign(pod, mode="prepare", source={"archive": archive})
    agent = await new_agent(source_hosts="127.0.0.1").start()
    await agent.put(assignment)
    await agent.until(lambda status: status.state is AssignmentState.RUNNING)
    env = pod.connect()
    await env.reset()
    agent.kill()
    (web.root / "calc.tar.gz").unlink()
    shutil.rmtree(agent.directory / "cache", ignore_errors=True)
    web.requests.clear()
    await env.step(helpers.repair)
    await agent.start()
    await agent.put(msgspec.structs.replace(assignment, epoch=2))
    await agent.until(lambda status: status is not None and status.state is AssignmentState.RUNNING)
    await env.step({"tool": "submit", "arguments": {}})
    over = await agent.over()
    assert (over.state, over.reason) == (AssignmentState.FINISHED, EndReason.RESOLVED)
    assert [step["seq"] for step in agent.steps()] == [0, 1, 2]
    assert web.requests == []


async def test_git_sources_are_fetched_at_their_revision(agent, pod, web, git_repository, helpers):
    source = {"git": {"url": f"{web.url}/repo/.git", "revision": git_repository}}
    await agent.put(helpers.assign(pod, helpers.bash("cat note.txt; ls -a"), {"tool": "submit"}, source=source))
    over = await agent.over()
    assert over.state is AssignmentState.FINISHED, over.cause
    text = agent.steps()[1]["observation"]["text"]
    assert "committed" in text
    assert ".git" not in text


async def test_sources_that_are_wrong_end_the_episode(agent, pod, web, archive, helpers):
    source = {"archive": {**archive, "sha256": "0" * 64}}
    await agent.put(helpers.assign(pod, {"tool": "submit"}, source=source))
    over = await agent.over()
    assert (over.state, over.reason) == (AssignmentState.FINISHED, EndReason.SOURCE_FAILED)
    assert "SHA-256" in over.cause
    assert pod.termination().reason is EndReason.SOURCE_FAILED
