"""Sessions of this process: sandbox, repository and tools of a task on this machine."""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from dgym.api import DebugTask, ToolSpec, digest, load
from dgym.api.quantities import parse_quantity
from dgym.env.driver import Action, EpisodeView
from dgym.env.views import instructions, schema
from dgym.errors import EpisodeOver, ManifestError
from dgym.sandbox import EngineName, SandboxKind, SandboxProvider, SandboxSpec
from dgym.sandbox.container import DEFAULT_IMAGE, ContainerProvider, Engine, choose_engine, ensure_image
from dgym.sandbox.local import LocalProvider, cache_directory, ensure_environment, resolve_python
from dgym.session import EpisodeLimits, Session, SuiteCache, sandbox_spec
from dgym.tools import Tool, load_tools
from dgym.wire import EndReason, Observation, Result, Step
from dgym.wire.http import Usage
from dgym.workspace.sources import pack_source


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """Who opens a task's sandboxes; ``programs`` names what its programs are run with."""

    provider: SandboxProvider
    programs: str


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what a task's programs run on this machine."""

    sandbox: SandboxKind = "auto"
    engine: EngineName = "auto"
    python: str | None = None
    progress: Callable[[str], None] | None = None

    async def open(self, task: DebugTask) -> Opened:
        """What opens the task's sandboxes, once requirements are installed or the image is there.

        Raises:
            SetupFailed: The requirements could not be installed.
            SandboxStartFailed: The container engine or the image could not be had.
            ManifestError: ``python`` is neither an interpreter nor a virtual environment, or does not fit the sandbox.
        """
        engine = await choose_engine(
            self.sandbox,
            self.engine,
            image=task.spec.image,
            delivered=task.spec.source is not None,
            python=self.python,
        )
        if engine is not None:
            return await self._in_container(task, engine)
        spec = await self.sandbox_spec(task)
        kind = "auto" if self.sandbox == "container" else self.sandbox
        return Opened(provider=LocalProvider(spec, kind=kind), programs=spec.python or "")

    async def sandbox_spec(self, task: DebugTask) -> SandboxSpec:
        """The specification of a sandbox outside containers; the ``requirements`` are installed if they are not yet.

        Raises:
            SetupFailed: The requirements could not be installed.
            ManifestError: ``python`` is neither an interpreter nor a virtual environment.
        """
        if self.python is not None:
            python = resolve_python(self.python)
        else:
            python = await ensure_environment(task.spec.requirements, progress=self.progress)
        return sandbox_spec(task, python)

    async def _in_container(self, task: DebugTask, engine: Engine) -> Opened:
        spec = task.spec
        if spec.image is None and not set(spec.requirements) <= {"pytest"}:
            raise ManifestError(
                f"the task has requirements ({', '.join(spec.requirements)}), which dgym's own image does not hold and "
                "a container without a network cannot install; give the task an 'image' that has them"
            )
        image = await ensure_image(engine, spec.image or DEFAULT_IMAGE, self.progress)
        cpus = spec.resources.limits.get("cpu")
        provider = ContainerProvider(
            sandbox_spec(task, None),
            engine=engine,
            image=image,
            delivered=spec.source is not None,
            in_place=spec.pod_template == "baseline",
            cpus=None if cpus is None else float(parse_quantity(cpus)),
        )
        return Opened(provider=provider, programs=f"image {image.id}")


def open_task(task: DebugTask | str | Path) -> DebugTask:
    """The task itself, or the only one of a manifest.

    Raises:
        ManifestError: The manifest is wrong or does not hold exactly one DebugTask.
    """
    if isinstance(task, DebugTask):
        return task
    tasks = [resource for resource in load(task) if isinstance(resource, DebugTask)]
    if len(tasks) != 1:
        raise ManifestError(f"{task}: has {len(tasks)} DebugTasks, not one; pass one of dgym.load() instead")
    return tasks[0]


async def open_source(task: DebugTask) -> Path | None:
    """A tar of the task's repository in the cache; None when it has no source.

    Raises:
        SourceFailed: It could not be obtained.
    """
    if task.spec.source is None:
        return None
    return await pack_source(task.spec.source, base=Path.cwd(), cache=cache_directory() / "sources")


def suite_cache(task: DebugTask, source: Path | None, programs: str) -> SuiteCache:
    """Where the suite of this task's untouched repository is remembered.

    The key has what runs the programs, and the sources: a packed source is named by its content or commit, while a
    local path stays the same when its files change.
    """
    key = msgspec.json.encode([digest(task, None), programs, source.name if source is not None else ""])
    return SuiteCache(cache_directory() / "suites", hashlib.sha256(key).hexdigest())


class LocalDriver:
    """A fresh session for every reset."""

    def __init__(
        self,
        task: DebugTask,
        *,
        tools: Sequence[str | ToolSpec | Tool],
        limits: EpisodeLimits,
        opening: Opening,
    ) -> None:
        self.task = task
        self._tools = tuple(tools)
        self._limits = limits
        self._opening = opening
        self._session: Session | None = None
        self._resources = contextlib.AsyncExitStack()

    @property
    def result(self) -> Result | None:
        """The verdict, once there is one."""
        return self._session.result if self._session is not None else None

    async def reset(self, *, evaluate: bool, task: DebugTask | None) -> Observation:
        """Start a fresh episode; the one before is discarded."""
        if task is not None:
            self.task = task
        await self.close()
        session = await self._open()
        try:
            observation = await session.reset(evaluate=evaluate)
        except BaseException:
            await self.close()
            raise
        self._session = session
        return observation

    async def step(self, action: Action) -> Observation:
        """Execute the next step."""
        session = self._running()
        return await session.step(session.next_seq, action)

    async def peek(self, action: Action) -> Observation:
        """Look without a step."""
        return await self._running().peek(action)

    async def finish(self, reason: EndReason) -> Result:
        """End the episode and score it."""
        return await self._running().finish(reason)

    async def patch(self) -> str:
        """What the agent has changed."""
        if self.result is not None:
            return self.result.patch
        return (await self._running().changes()).patch.decode("utf-8", "surrogateescape")

    async def apply_solution(self) -> Observation:
        """Apply the task's own solution."""
        return await self._running().apply_solution()

    def history(self) -> list[Step]:
        """The steps so far."""
        return self._running().history()

    def view(self) -> EpisodeView:
        """Where the episode stands."""
        session = self._running()
        return EpisodeView(
            steps=session.steps,
            rewrites=session.rewrites,
            evaluation=session.evaluation,
            breakpoints=session.breakpoints,
            focus_file=session.focus_file,
            notices=tuple(session.notices),
            instructions=instructions(session.task.spec.instructions, session.tools),
            tools=tuple(schema(tool) for tool in session.tools.values()),
        )

    @property
    def usage(self) -> Usage:
        """None: nobody drove this session before."""
        return Usage()

    def note_usage(self, *, input_tokens: int, output_tokens: int) -> None:
        """Whoever drives a session of its own process keeps account by itself."""

    async def close(self) -> None:
        """End the session, if there is one."""
        self._session = None
        resources, self._resources = self._resources, contextlib.AsyncExitStack()
        await resources.aclose()

    def _running(self) -> Session:
        if self._session is None:
            raise EpisodeOver("call reset() first")
        return self._session

    async def _open(self) -> Session:
        opened = await self._opening.open(self.task)
        source = await open_source(self.task)
        session = Session(
            self.task,
            provider=opened.provider,
            tools=load_tools(self._tools),
            source=source,
            limits=self._limits,
            suite_cache=suite_cache(self.task, source, opened.programs),
        )
        self._resources.push_async_callback(session.close)
        return session
