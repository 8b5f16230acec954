"""Sessions of this process: sandbox, repository and tools of a task on this machine; and the check of a task."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from dgym.api import DebugTask, ToolSpec, digest, load, parse_quantity
from dgym.errors import ManifestError, SetupFailed, VerifierFailed
from dgym.sandbox import EngineName, EntrypointResult, SandboxKind, SandboxProvider, SandboxSpec
from dgym.sandbox.container import DEFAULT_IMAGE, ContainerProvider, Engine, choose_engine, ensure_image
from dgym.sandbox.local import LocalProvider, cache_directory, ensure_environment, resolve_python
from dgym.session import (
    ChangeSet,
    EpisodeLimits,
    Session,
    SuiteCache,
    prepare,
    sandbox_spec,
    solution_versions,
    verification_plan,
)
from dgym.session.verification import Assessment, VerificationPlan, assess, remember_passing, run_version
from dgym.tools import Tool, load_tools
from dgym.workspace.patches import FileVersion
from dgym.workspace.sources import pack_source


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The provider of a task's sandboxes; ``programs`` names what its programs are run with."""

    provider: SandboxProvider
    programs: str


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what a task's programs run on this machine."""

    sandbox: SandboxKind = "auto"
    engine: EngineName = "auto"
    python: str | None = None
    build_requirements: bool = False
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
        provider = LocalProvider(spec, kind="none" if self.sandbox == "none" else "bubblewrap")
        return Opened(provider=provider, programs=spec.python or "")

    async def sandbox_spec(self, task: DebugTask) -> SandboxSpec:
        """The specification of a sandbox outside containers; the ``requirements`` are installed if they are not yet.

        Raises:
            SetupFailed: The requirements could not be installed.
            ManifestError: ``python`` is neither an interpreter nor a virtual environment.
        """
        if self.python is not None:
            python = resolve_python(self.python)
        else:
            python = await ensure_environment(
                task.spec.requirements, build_requirements=self.build_requirements, progress=self.progress
            )
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


class LocalEpisodes:
    """Opens sessions in this process: one for each reset.

    Args:
        task: The bug, until another one is given.
        tools: What the agent may call.
        limits: Steps, rewrites, deadline.
        opening: Where and with what the task's programs run.
    """

    def __init__(
        self,
        task: DebugTask,
        *,
        tools: Sequence[str | ToolSpec | Tool],
        limits: EpisodeLimits,
        opening: Opening,
    ) -> None:
        self._task = task
        self._tools = tuple(tools)
        self._limits = limits
        self._opening = opening

    async def open(self, task: DebugTask | None) -> Session:
        """A session that is not reset yet; ``task`` is what this one and later ones are about."""
        self._task = task or self._task
        opened = await self._opening.open(self._task)
        source = await open_source(self._task)
        return Session(
            self._task,
            provider=opened.provider,
            tools=load_tools(self._tools),
            source=source,
            limits=self._limits,
            suite_cache=suite_cache(self._task, source, opened.programs),
        )


Versions = Mapping[str, FileVersion | None]


async def check_task(
    task: DebugTask, opening: Opening, *, repeats: int = 2, progress: Callable[[str], None] = lambda _text: None
) -> Assessment:
    """Run the untouched repository and, where there is one, the solution ``repeats`` times each.

    What is learned of a task that passes already is remembered for its results. A setup that fails, an environment that
    cannot run the tests and a solution that does not apply are problems of the assessment.

    Raises:
        InfrastructureError: A sandbox, an image or the source could not be had.
    """
    try:
        opened = await opening.open(task)
        source = await open_source(task)
        check = _Check(task, opened, source)
        before = []
        for number in range(1, repeats + 1):
            progress(f"{task.metadata.name}: running the untouched repository ({number} of {repeats})")
            before.append(await check.run(solved=False))
        after = []
        for number in range(1, repeats + 1 if task.spec.solution else 1):
            progress(f"{task.metadata.name}: running the solution ({number} of {repeats})")
            after.append(await check.run(solved=True))
    except (ManifestError, SetupFailed, VerifierFailed) as error:
        return Assessment(task=task.metadata.name, problems=(str(error),))
    assessment = assess(task.metadata.name, check.plan, before, after)
    remember_passing(check.plan, passes=assessment.passes)
    return assessment


class _Check:
    def __init__(self, task: DebugTask, opened: Opened, source: Path | None) -> None:
        self._task = task
        self._opened = opened
        self._source = source
        self.plan = VerificationPlan(entrypoint=task.spec.entrypoint, changed={})

    async def run(self, *, solved: bool) -> EntrypointResult:
        """One run in a sandbox of its own."""
        verifier = await self._opened.provider.verifier()
        try:
            baseline = await prepare(verifier, self._task, self._source)
            cache = suite_cache(self._task, self._source, self._opened.programs)
            self.plan = verification_plan(self._task, baseline, ChangeSet(changes={}), cache)
            changed: Versions = await solution_versions(verifier, self._task) if solved else {}
            return await run_version(verifier, msgspec.structs.replace(self.plan, changed=changed))
        finally:
            await verifier.stop()
