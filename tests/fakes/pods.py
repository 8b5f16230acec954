"""Pods without a cluster: two real runners behind Unix sockets, each with a separate workspace at the same path, and
a sidecar on a loopback port."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from dgym import AsyncRepoEnv
from dgym.api import DebugTask
from dgym.env import open_source, prepare
from dgym.sandbox._cache import compiled_runner
from dgym.sandbox.local import ensure_environment
from dgym.session import EpisodeLimits
from dgym.sidecar._api import Api
from dgym.sidecar._attempt import Attempt
from dgym.sidecar._preparation import Runners
from dgym.sidecar._serving import TerminationLog
from dgym.sidecar.settings import PREFIX, Settings
from dgym.wire import calls
from dgym.wire.client import PodClient, RetryLimits
from dgym.wire.http import (
    EPOCH_HEADER,
    IDEMPOTENCY_HEADER,
    Role,
    RunningRequest,
    make_token,
    token_digest,
)
from dgym.wire.outcome import decode_termination
from dgym.wire.signing import content_digest, make_epochs, sign_request
from tests.support.calc import BUGGY, SOLUTION
from tests.support.warm_programs import WarmProgram

QUICK = RetryLimits(silence_seconds=20, first_pause_seconds=0.02, longest_pause_seconds=0.2)
FILES = {
    "calc.py": BUGGY,
    "check.py": "import calc\n\nassert calc.add(2, 3) == 5\n",
    "test_calc.py": "import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n",
}
REPAIR = {"tool": "rewrite", "arguments": {"path": "calc.py", "start": 2, "end": 2, "new_code": "    return a + b"}}
TOOLS = ("bash", "view", "eval", "pdb", "rewrite", "submit")


class Pod:
    """A pod of an attempt. After ``await pod.start()`` everything runs, but the attempt is not prepared."""

    view = ("--dev-bind", "/", "/")
    """Arguments of bwrap that select the parts of this machine that the containers see."""

    warm: WarmProgram | None = None
    """Program that forks the sidecar, unless a test requires a fresh process."""

    def __init__(self, directory: Path, environment: Path, **settings):
        self.directory = directory
        self.environment = environment
        self.tokens = {role: make_token(b"key", episode_uid="uid", attempt=1, role=role) for role in Role}
        self.settings = Settings(
            **{
                **{f"{role}_sha256": token_digest(token) for role, token in self.tokens.items()},
                "host": "127.0.0.1",
                "port": 0,
                "allow_local_connections": True,
                "sandbox_socket": directory / "sandbox.sock",
                "verifier_socket": directory / "verifier.sock",
                "directory": directory / "state",
                "termination_log": directory / "termination",
                "episode": "default/calc",
                "episode_uid": "uid",
                "answer_seconds": 20.0,
                "stop_timeout_seconds": 20.0,
                **settings,
            },
        )
        self.runners: dict[str, subprocess.Popen] = {}
        self.url = ""
        self.attempt: Attempt | None = None
        self._stack = contextlib.AsyncExitStack()
        self._operating: asyncio.Task | None = None

    # Starting and ending

    @property
    def variables(self):
        """The environment of its sidecar."""
        names = [name for name in Settings.__struct_fields__ if getattr(self.settings, name) is not None]
        return {PREFIX + name.upper(): str(getattr(self.settings, name)) for name in names}

    async def start(self, *, operated=True, runners=True):
        """Start the runners and serve the attempt in this process. With ``operated``, the sandbox's end is reported."""
        if runners:
            self.start_runners()
        self.settings.directory.mkdir(exist_ok=True)
        connected = Runners(self.settings.sandbox_socket, self.settings.verifier_socket)
        connecting = asyncio.ensure_future(connected.connect())
        self.attempt = Attempt(self.settings, connected, record=TerminationLog(self.settings).record)
        application = Api(self.attempt).application()
        server = web.AppRunner(application, access_log=None, shutdown_timeout=1)
        await server.setup()
        self._stack.push_async_callback(self.attempt.close)
        self._stack.push_async_callback(server.cleanup)
        self._stack.callback(connecting.cancel)
        await web.TCPSite(server, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{server.addresses[0][1]}"
        if runners:
            await asyncio.wait_for(connecting, 90)
        if operated:
            self.operate()
        return self

    def start_runners(self):
        workspace = self.directory / "workspace"
        workspace.mkdir(exist_ok=True)
        main = compiled_runner(sys.executable, sys.implementation.cache_tag) / "__main__.py"
        for name in ("sandbox", "verifier"):
            files = self.directory / f"{name}-files"
            files.mkdir()
            command = ["bwrap", *self.view, "--bind", str(files), str(workspace), "--proc", "/proc"]
            command += ["--unshare-pid", "--die-with-parent", "--chdir", "/", "--clearenv"]
            command += ["--setenv", "PATH", f"{self.environment}/bin:/usr/bin:/bin", "--"]
            command += [sys.executable, "-I", "-S", "-B", str(main), "--socket", str(self.directory / f"{name}.sock")]
            self.runners[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def start_process(self, *, fresh=False):
        """Serve the attempt in a separate process, as a container does. Its log is in ``sidecar.log``."""
        path, environment = self.directory / "sidecar.log", {**os.environ, **self.variables}
        if self.warm is not None and not fresh:
            process = self.warm.start(environment, path)
        else:
            with path.open("ab") as log:
                process = subprocess.Popen([sys.executable, "-m", "dgym.sidecar"], env=environment, stderr=log)
        self._stack.callback(_end, process)
        return process

    async def listening(self, count=1):
        """Wait until the log has the address of the process that was started as number ``count``."""
        log = self.directory / "sidecar.log"

        def found():
            return [line for line in log.read_text().splitlines() if '"listening"' in line][count - 1 :]

        line = (await eventually(found))[0]
        host, port = json.loads(line)["addresses"][0]
        self.url = f"http://{host}:{port}"
        return host, port

    async def ready(self):
        """Wait until both runners answer the sidecar."""
        async with asyncio.timeout(90):
            while (await self.raw("GET", "/readyz"))[0] != 200:
                await asyncio.sleep(0.01)

    def operate(self):
        """Report the end of the sandbox as soon as it has terminated, as the operator does."""
        self._operating = asyncio.ensure_future(self._confirm())

    async def _confirm(self):
        await self.sandbox_ended()
        await self.client(Role.OPERATE).call(calls.TERMINATED)

    async def running(self, observed):
        """Report that the sandbox was running at the time ``observed``, as the operator does."""
        data = msgspec.json.encode(RunningRequest(observed=observed))
        return await self.raw("POST", calls.RUNNING.path, role=Role.OPERATE, data=data)

    async def sandbox_ended(self):
        # No deadline: without this report, the sidecar treats a terminated sandbox as one that did not stop.
        await eventually(lambda: self.runners["sandbox"].poll() is not None, seconds=None)

    async def close(self):
        if self._operating is not None:
            self._operating.cancel()
            await asyncio.gather(self._operating, return_exceptions=True)
        await self._stack.aclose()
        for process in self.runners.values():
            _end(process)

    # Calling

    def client(self, role):
        client = PodClient(self.url, self.tokens[role], retry_limits=QUICK)
        self._stack.push_async_callback(client.close)
        return client

    def bake(self):
        """Write the repository into the workspaces, as if the image contained it."""
        for name in ("sandbox", "verifier"):
            for path, content in FILES.items():
                (self.directory / f"{name}-files" / path).write_text(content)

    async def prepare(
        self, *, tools=TOOLS, limits=None, epoch=None, driver_idle_seconds=None, trajectory=None, usage=None, **spec
    ):
        task = make_task(self.directory / "workspace", **spec)
        given = epochs_of(epoch).prepare if epoch is not None else None
        client = PodClient(self.url, self.tokens[Role.PREPARE], epoch=given, retry_limits=QUICK)
        self._stack.push_async_callback(client.close)
        source = await open_source(task)
        await prepare(
            client,
            task,
            source=source,
            tools=tools,
            limits=limits or EpisodeLimits(),
            driver_idle_seconds=driver_idle_seconds,
            trajectory=trajectory,
            usage=usage,
        )
        return client

    def connect(self, url=None, *, epoch=None, **options):
        epochs = epochs_of(epoch) if epoch is not None else None
        env = AsyncRepoEnv.connect(
            url or self.url,
            self.tokens[Role.DRIVE],
            epochs=epochs,
            prepare_token=self.tokens[Role.PREPARE],
            **options,
        )
        self._stack.push_async_callback(env.close)
        return env

    async def raw(self, method, path, *, role=None, token=None, headers=None, data=None):
        """Make a call without retries. Returns its status and body."""
        headers = dict(headers or {})
        if role is not None or token is not None:
            headers["Authorization"] = sign_request(
                token or self.tokens[role],
                method,
                path,
                epoch=headers.get(EPOCH_HEADER, ""),
                reset_key=headers.get(IDEMPOTENCY_HEADER, ""),
                content=content_digest(data if isinstance(data, bytes) else b""),
            )
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, headers=headers, data=data) as response,
        ):
            body = await response.read()
        return response.status, msgspec.json.decode(body) if response.content_type == "application/json" else body

    async def step(self, seq, tool, arguments=None):
        return await self.raw(
            "POST",
            f"/v1/steps/{seq}",
            role=Role.DRIVE,
            data=msgspec.json.encode({"tool": tool, "arguments": arguments or {}}),
        )

    # Inspecting

    def termination(self):
        """The outcome in the sidecar's termination message. None if the attempt has not ended."""
        message = self.termination_message()
        return message.outcome if message is not None else None

    def termination_message(self):
        """The current termination message. None if it does not exist."""
        path = self.settings.termination_log
        return decode_termination(path.read_bytes()) if path.exists() else None

    def file(self, name):
        return (self.directory / "sandbox-files" / name).read_text()


def epochs_of(number):
    """Epochs that the operator creates for assignment ``number``."""
    return make_epochs(b"key", episode_uid="uid", attempt=1, epoch=number)


def make_task(workspace, **spec):
    source = {"files": [{"path": path, "content": content} for path, content in FILES.items()]}
    spec = {
        "instructions": "calc is wrong",
        "source": source,
        "workingDirectory": str(workspace),
        "entrypoint": "python check.py",
        "solution": SOLUTION,
        **spec,
    }
    return msgspec.convert({"metadata": {"name": "calc"}, "spec": spec}, DebugTask)


def _end(process):
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(90)
        finally:
            process.kill()
    process.wait()


async def eventually(condition, seconds=90):
    """Wait until ``condition()`` is true."""
    async with asyncio.timeout(seconds):
        while not (value := condition()):
            await asyncio.sleep(0.01)
    return value


@contextlib.asynccontextmanager
async def pods_in(directory: Path, *, warm: WarmProgram | None = None):
    """A factory for a test's pods. They are closed at the end of the block."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    environment = Path(await ensure_environment(()))
    pods = []

    def make(*, kind=Pod, directory=directory, **settings):
        pods.append(kind(directory, environment, **settings))
        pods[-1].warm = warm
        return pods[-1]

    try:
        yield make
    finally:
        for pod in pods:
            await pod.close()
