"""Tests of ``python -m dgym.sidecar``, as a container runs it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dgym.errors import EpisodeOver
from dgym.wire import calls
from dgym.wire.http import ReleaseRequest, Role
from dgym.wire.signing import outcome_is_signed

MAXIMUM_RESIDENT_KIB = 45_000_000 // 1024


def resident_kib(process):
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


async def test_a_sidecar_serves_one_attempt_and_leaves_its_outcome(new_pod, helpers):
    pod = new_pod()
    pod.start_runners()
    process = pod.start_process(fresh=True)
    await pod.listening()
    await pod.ready()
    pod.operate()
    client = await pod.prepare()
    env = pod.connect()
    await env.reset(options={"eval": True})
    await env.step("pdb b calc.py:2")
    await env.step("pdb c")
    await env.step(helpers.repair)
    *_, info = await env.step("submit")
    assert info["resolved"]
    if "COVERAGE_PROCESS_CONFIG" not in os.environ and "COVERAGE_PROCESS_START" not in os.environ:
        assert resident_kib(process) <= MAXIMUM_RESIDENT_KIB
    outcome = (await client.call(calls.RESULT)).result
    await client.call(calls.RELEASE, ReleaseRequest(result_uri="file:///result.json"))
    assert await asyncio.to_thread(process.wait, 90) == 0
    assert (pod.termination().resolved, pod.termination().result_uri) == (True, "file:///result.json")
    assert outcome_is_signed(b"key", outcome, episode_uid="uid", attempt=1)
    assert not outcome_is_signed(b"key", outcome, episode_uid="uid", attempt=2)
    for line in (pod.directory / "sidecar.log").read_text().splitlines():
        entry = json.loads(line)
        assert (entry["namespace"], entry["episode"], entry["attempt"]) == ("default", "calc", 1)
        assert pod.tokens[Role.DRIVE] not in line
    await helpers.wait(lambda: pod.runners["verifier"].poll() is not None)


async def test_a_restarted_sidecar_reports_that_its_trajectory_is_lost(new_pod):
    pod = new_pod()
    pod.start_runners()
    process = pod.start_process(fresh=True)
    await pod.listening()
    await pod.ready()
    await pod.prepare()
    env = pod.connect()
    await env.reset()
    running = asyncio.ensure_future(pod.step(1, "bash", {"command": "echo > begun; sleep 600"}))
    while not (pod.directory / "sandbox-files" / "begun").exists():
        await asyncio.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 90) == 0
    await asyncio.gather(running, return_exceptions=True)
    await pod.sandbox_ended()
    assert pod.termination() is None

    pod.start_process(fresh=True)
    await pod.listening(count=2)
    env = pod.connect()
    with pytest.raises(EpisodeOver, match="restarted"):
        await env.reset()
    status, body = await pod.step(2, "view", {"path": "calc.py"})
    assert (status, body["code"]) == (410, "attempt_over")
    assert (await pod.raw("GET", "/healthz"))[0] == 200
    assert (await pod.raw("GET", "/readyz"))[0] == 503


def test_a_wrong_environment_is_named():
    answer = subprocess.run(
        [sys.executable, "-m", "dgym.sidecar"], env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert "DGYM_SIDECAR_PREPARE_SHA256" in answer.stderr


def test_modules_that_the_sidecar_does_not_load_can_still_be_imported():
    code = (
        "import sys, dgym.sidecar.__main__ as sidecar\n"
        "with sidecar._without_tls():\n"
        "    import aiohttp.web, dgym.sidecar._serving\n"
        "assert '_ssl' not in sys.modules, 'something needs it after all'\n"
        "import ssl\n"
        "ssl.create_default_context()\n"
        "unwanted = {'prometheus_client', 'yaml', 'http.server', 'dgym.env', 'dgym.sandbox.local'} & set(sys.modules)\n"
        "assert not unwanted, unwanted\n"
    )
    # If coverage measures subprocesses, it imports many other modules.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
