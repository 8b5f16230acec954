"""Fixtures for agent pods without a cluster: real agent pod processes, and episode pods with sidecars and runners."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import msgspec
import pytest

from dgym.episodes.agent_pod._tokens import write_tokens
from dgym.wire.assignments import (
    HOUR_SECONDS,
    AgentPodReport,
    AgentPodRole,
    Assignment,
    AssignmentState,
    make_agent_pod_key,
    make_assign_token,
    make_pool_key,
    make_results_token,
)
from dgym.wire.http import Role, token_digest
from dgym.wire.signing import make_epochs
from tests.fakes.openai_server import Answer, Call
from tests.fakes.pods import REPAIR, eventually, make_task, pods_in
from tests.support.warm_programs import AGENT_POD, ForkedProgram, WarmProgram, open_warm_program
from tests.support.web import serve_directory

POOL_KEY, POD_UID = make_pool_key(b"key", ""), "uid-of-the-agent"


def token_of(role):
    """The current token of the operator, or of a reader of results."""
    if role is AgentPodRole.RESULTS:
        return make_results_token(b"key")
    return make_assign_token(make_agent_pod_key(POOL_KEY, POD_UID), int(time.time()) // HOUR_SECONDS)


OVER = (AssignmentState.FINISHED, AssignmentState.FAILED)


def _say(text, tool, **arguments):
    return Answer(text=text, calls=(Call(tool, json.dumps(arguments)),))


class Agent:
    """The process of an agent pod: ``await agent.start()``. Settings are environment variables without their prefix."""

    def __init__(self, directory: Path, *, warm: WarmProgram | None = None, **settings):
        self.directory = directory
        self._warm = warm
        self.results = directory / "results"
        self.process: subprocess.Popen | ForkedProgram | None = None
        self.url = ""
        self._settings = settings
        self._number = 0

    async def start(self):
        self._number += 1
        tokens = self.directory / "tokens"
        if not tokens.exists():
            tokens.mkdir()
            pool = self.directory / "pool"
            pool.mkdir(exist_ok=True)
            (pool / "pool-key").write_text(POOL_KEY)
            (pool / "results-token-sha256").write_text(token_digest(token_of(AgentPodRole.RESULTS)))
            write_tokens(pool, tokens, POD_UID)
        settings = {
            "HOST": "127.0.0.1",
            "PORT": 0,
            "RESULTS": self.results,
            "TOKENS_DIRECTORY": tokens,
            "CACHE_DIRECTORY": self.directory / "cache",
            "STORE_RETRY_SECONDS": 0.2,
            "SANDBOX_SILENCE_SECONDS": 20,
            **{name.upper(): value for name, value in self._settings.items() if not name.isupper()},
        }
        variables = {f"DGYM_AGENT_{name}": str(value) for name, value in settings.items()}
        plain = {name: str(value) for name, value in self._settings.items() if name.isupper()}
        self.log = self.directory / f"agent-{id(self):x}-{self._number}.log"
        environment = {**os.environ, **variables, **plain}
        if self._warm is not None:
            self.process = self._warm.start(environment, self.log)
        else:
            with self.log.open("wb") as log:
                command = [sys.executable, "-m", "dgym.episodes.agent_pod"]
                self.process = subprocess.Popen(command, env=environment, stderr=log)
        addresses = await eventually(lambda: self._logged("listening"))
        self.url = f"http://127.0.0.1:{addresses['addresses'][0][1]}"
        return self

    def _logged(self, message):
        assert self.process.poll() is None, self.log.read_text()
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                if (record := json.loads(line))["message"] == message:
                    return record
        return None

    def kill(self):
        """Kill the process, as if its node disappeared."""
        self.process.kill()
        self.process.wait(90)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    async def ended(self):
        return await eventually(lambda: None if self.process.poll() is None else (self.process.returncode,))

    async def call(self, method, path, *, role=AgentPodRole.ASSIGN, token=None, body=None):
        headers = {"Authorization": f"Bearer {token_of(role) if token is None else token}"}
        data = None if body is None else msgspec.json.encode(body)
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, headers=headers, data=data) as response,
        ):
            return response.status, await response.read()

    async def put(self, assignment):
        return await self.call("PUT", f"/v1/assignments/{assignment.episode_uid}", body=assignment)

    async def delete(self, uid="uid"):
        return await self.call("DELETE", f"/v1/assignments/{uid}")

    async def report(self):
        _, body = await self.call("GET", "/v1/assignments")
        return msgspec.json.decode(body, type=AgentPodReport)

    async def status(self, uid="uid"):
        return next((one for one in (await self.report()).assignments if one.episode_uid == uid), None)

    async def until(self, condition, uid="uid", seconds=90):
        """Return the status of the episode as soon as ``condition(status)`` is true."""
        async with asyncio.timeout(seconds):
            while not condition(status := await self.status(uid)):
                await asyncio.sleep(0.02)
        return status

    async def over(self, uid="uid"):
        status = await self.until(lambda found: found is not None and found.state in OVER, uid)
        assert self.process.poll() is None, self.log.read_text()
        return status

    def folder(self, attempt=1):
        return self.results / "default" / "calc" / "uid" / str(attempt)

    def result(self):
        return json.loads((self.folder() / "result.json").read_text())

    def steps(self):
        text = (self.folder() / "trajectory.jsonl").read_text()
        # The last line may be incomplete.
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()[1:]]

    def close(self):
        """Send SIGTERM, and once more if episodes delay the end. A killed process would not write its coverage data."""
        for seconds in (0.5, 5):
            if self.process is not None and self.process.poll() is None:
                self.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(seconds)
        if self.process is not None and self.process.poll() is None:
            self.kill()


@pytest.fixture
async def new_pod(tmp_path):
    """A function that makes the pod of an episode."""
    async with pods_in(tmp_path) as make:
        yield make


@pytest.fixture
async def pod(new_pod):
    """The pod of an episode, in the state in which the operator finds it ready."""
    return await new_pod().start()


@pytest.fixture(scope="session")
def warm_agent_pods():
    with open_warm_program(AGENT_POD) as program:
        yield program


@pytest.fixture
def new_agent(tmp_path, warm_agent_pods):
    """A function that makes agent pods: ``await new_agent(slots=1).start()``."""
    agents = []

    def make(**settings):
        agents.append(Agent(tmp_path, warm=warm_agent_pods, **settings))
        return agents[-1]

    yield make
    for agent in agents:
        agent.close()


@pytest.fixture(scope="session")
def shared_agent(tmp_path_factory):
    """A single agent pod for all tests that do not end it and do not change its settings."""
    agent = Agent(tmp_path_factory.mktemp("agent"), source_hosts="127.0.0.1", sandbox_silence_seconds=20)
    yield agent
    agent.close()


@pytest.fixture
async def agent(shared_agent):
    """A running agent pod without assignments."""
    if shared_agent.process is None:
        await shared_agent.start()
    yield shared_agent
    for status in (await shared_agent.report()).assignments:
        await shared_agent.delete(status.episode_uid)
    shutil.rmtree(shared_agent.results / "default", ignore_errors=True)


@pytest.fixture
def web(tmp_path):
    """A directory that is served on the loopback interface."""
    with serve_directory(tmp_path / "web") as server:
        yield server


@pytest.fixture
def git_repository(web):
    """A repository on the web server, as plain files. Returns the name of its branch."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    repository = web.root / "repo"
    repository.mkdir()
    (repository / "note.txt").write_text("committed\n")
    (repository / "check.py").write_text("pass\n")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for command in (
        ("init", "--quiet", "--initial-branch=trunk"),
        ("add", "."),
        (*identity, "commit", "--quiet", "-m", "first"),
        ("update-server-info",),
    ):
        subprocess.run(["git", *command], cwd=repository, check=True, timeout=90)
    (repository / "note.txt").write_text("changed\n")
    return "trunk"


@pytest.fixture
def helpers():
    """Functions and values that the tests of this directory share."""

    class Helpers:
        repair = REPAIR
        script = (
            _say("I look around.", "bash", command="echo 1 >> counter.txt"),
            _say("I wait.", "bash", command="echo 2 >> counter.txt; until [ -e go ]; do sleep 0.02; done"),
            _say("I repair it.", "rewrite", path="calc.py", start=2, end=2, new_code="    return a + b"),
            _say("I am done.", "submit"),
        )
        wait = staticmethod(eventually)

        @staticmethod
        def assign(
            pod, *calls, agent=None, epoch=1, tools=("bash", "view", "eval", "pdb", "rewrite", "submit"), **more
        ):
            """An assignment of the pod's episode. ``calls`` are replayed unless an agent is given."""
            text = "\n".join(json.dumps(call) for call in calls)
            fields = {name: more.pop(name) for name in tuple(more) if name in Assignment.__struct_fields__}
            return Assignment(
                **{
                    "namespace": "default",
                    "episode": "calc",
                    "episode_uid": "uid",
                    "attempt": 1,
                    "epoch": epoch,
                    "epochs": make_epochs(b"key", episode_uid="uid", attempt=1, epoch=epoch),
                    "sidecar_url": pod.url,
                    "prepare_token": pod.tokens[Role.PREPARE],
                    "drive_token": pod.tokens[Role.DRIVE],
                    "task": msgspec.to_builtins(make_task(pod.directory / "workspace", **more)),
                    "agent": agent or {"name": "replay", "parameters": {"trajectory": text}},
                    "tools": tools,
                    **fields,
                }
            )

        @staticmethod
        def bash(command):
            return {"tool": "bash", "arguments": {"command": command}}

    return Helpers
