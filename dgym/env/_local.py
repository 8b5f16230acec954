"""Sessions in this process, with the sandbox, the repository and the tools of a task, and the check of a task."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from dgym.api import DebugTask, Environment, Episode, ToolSpec, digest, find_task, load, parse_quantity
from dgym.benchmarks import bundled_tasks
from dgym.errors import ManifestError, SandboxLost, SandboxStartFailed, SetupFailed, VerifierFailed
from dgym.sandbox import EngineName, EntrypointResult, SandboxKind, SandboxProvider, SandboxSpec, cache_directory
from dgym.sandbox.container import DEFAULT_IMAGE, ContainerProvider, Engine, call, choose_engine, ensure_image
from dgym.sandbox.local import (
    InstalledProject,
    LocalProvider,
    ProjectRequest,
    ensure_environment,
    find_version,
    install_project,
    names_version,
    resolve_python,
)
from dgym.session import (
    ChangeSet,
    EpisodeLimits,
    RecordedTrajectory,
    Session,
    prepare,
    sandbox_spec,
    scoring_plan,
    solution_versions,
)
from dgym.session.scoring import (
    BUILD_FILES,
    Assessment,
    ScoringPlan,
    SuiteCache,
    UnmetRequirement,
    assess,
    find_unmet_requirements,
    read_versions,
    run_version,
    unmet_requirements_in_output,
)
from dgym.tools import Tool, load_tools
from dgym.workspace.patches import FileVersion
from dgym.workspace.sources import last_tag, pack_source

_GIT_SECONDS = 30.0


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The prepared repository and sandbox provider of a task.

    Attributes:
        provider: Opens the task's sandboxes.
        source: A tar of the repository. None if the image has the repository.
        programs: Identifies what runs the task's programs.
    """

    provider: SandboxProvider
    source: Path | None
    programs: str


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """How a task's programs run on this machine. See the arguments of ``AsyncRepoEnv``."""

    sandbox: SandboxKind = "auto"
    engine: EngineName = "auto"
    python: str | None = None
    build_requirements: bool = False
    progress: Callable[[str], None] | None = None

    @property
    def installs(self) -> bool:
        """Whether the requirements of tasks may be installed on this machine."""
        return self.python is None and self.sandbox != "container"

    async def open(self, task: DebugTask) -> Opened:
        """Install requirements and project, or pull the image. Return what opens the task's sandboxes.

        Raises:
            SetupFailed: The requirements or the project could not be installed.
            SourceFailed: The repository could not be fetched.
            SandboxStartFailed: The container engine or the image is not available.
            ManifestError: ``python`` is neither an interpreter nor a virtual environment, or cannot be used with the
                sandbox.
        """
        engine = await choose_engine(
            self.sandbox,
            self.engine,
            image=task.spec.image,
            delivered=task.spec.source is not None,
            python=self.python,
        )
        source = await open_source(task)
        if engine is not None:
            return await self._in_container(task, engine, source)
        kind: Literal["none", "bubblewrap"] = "none" if self.sandbox == "none" else "bubblewrap"
        if source is None:
            spec = await self.sandbox_spec(task)
            return Opened(provider=LocalProvider(spec, kind=kind), source=None, programs=spec.python or "")
        project = await self.install(task, source)
        provider = LocalProvider(project.sandbox, kind=kind, project=project.layer)
        return Opened(provider=provider, source=source, programs=f"{project.sandbox.python} {project.name}")

    async def install(self, task: DebugTask, source: Path) -> InstalledProject:
        """Install the project of ``source``, the tar of the task's repository, for sandboxes without containers.

        Raises:
            SetupFailed: The requirements or the project could not be installed.
            ManifestError: ``python`` is neither an interpreter nor a virtual environment, or the declared environment
                does not match the repository.
        """
        environment = task.spec.declared_environment()
        request = ProjectRequest(
            environment=environment,
            sandbox=sandbox_spec(task, None if self.python is None else resolve_python(self.python)),
            kind="none" if self.sandbox == "none" else "bubblewrap",
            python=self._base(environment),
            tag=await _last_tag(task, source),
            build_requirements=self.build_requirements,
            writable=environment.install == "none" or bool(task.spec.setup_commands),
        )
        return await install_project(source, request, self.progress)

    async def sandbox_spec(self, task: DebugTask) -> SandboxSpec:
        """The specification of a sandbox without containers. Installs the ``requirements`` if needed.

        Raises:
            SetupFailed: The requirements could not be installed.
            ManifestError: ``python`` is neither an interpreter nor a virtual environment.
        """
        if self.python is not None:
            python = resolve_python(self.python)
        else:
            environment = task.spec.declared_environment()
            python = await ensure_environment(
                environment.requirements,
                python=self._base(environment),
                build_requirements=self.build_requirements,
                progress=self.progress,
            )
        return sandbox_spec(task, python)

    def _base(self, environment: Environment) -> str | None:
        """The interpreter for new environments. None: the one that runs dgym."""
        return None if environment.python is None or self.python is not None else find_version(environment.python)

    async def _in_container(self, task: DebugTask, engine: Engine, source: Path | None) -> Opened:
        spec = task.spec
        if problem := spec.image_problem():
            raise ManifestError(f"spec.{problem}")
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
        return Opened(provider=provider, source=source, programs=f"image {image.id}")


def open_task(task: DebugTask | str | Path) -> DebugTask:
    """Return the given task, the task of a manifest with one DebugTask or one Episode, or a bundled task by name.

    Raises:
        ManifestError: The manifest is invalid or does not have exactly one task, or there is neither a file nor a
            bundled task.
    """
    if isinstance(task, DebugTask):
        return task
    if not Path(task).exists() and Path(task).name == str(task) and not Path(task).suffix:
        return _bundled_task(str(task))
    resources = load(task)
    tasks = [resource for resource in resources if isinstance(resource, DebugTask)]
    if len(tasks) == 1:
        return tasks[0]
    episodes = [resource for resource in resources if isinstance(resource, Episode)]
    if len(episodes) == 1:
        return find_task(episodes[0], tasks or bundled_tasks())
    found = f"{len(tasks)} DebugTasks and {len(episodes)} Episodes"
    raise ManifestError(f"{task}: has {found}, and not exactly one task; pass one resource of dgym.load() instead")


def _bundled_task(name: str) -> DebugTask:
    tasks = {task.metadata.name: task for task in bundled_tasks()}
    if name not in tasks:
        raise ManifestError(f"{name}: no such file and no bundled task; bundled tasks are {', '.join(tasks)}")
    return tasks[name]


async def open_source(task: DebugTask) -> Path | None:
    """Pack the task's repository into a tar in the cache. Return None if the task has no source.

    Raises:
        SourceFailed: The repository could not be fetched.
    """
    if task.spec.source is None:
        return None
    return await pack_source(task.spec.source, base=Path.cwd(), cache=cache_directory() / "sources")


async def _last_tag(task: DebugTask, packed: Path) -> str:
    """The last tag of the task's repository, for build backends that read a version from git. "" if unknown."""
    source = task.spec.source
    if source is None or (source.local_path is None and source.git is None):
        return ""
    if source.git is not None:
        return await last_tag(source.git, packed, is_needed=lambda: not names_version(packed))
    try:
        answer = await call("git", ("-C", str(source.local_path), "describe", "--tags", "--abbrev=0"), _GIT_SECONDS)
    except SandboxStartFailed:  # Git is missing or timed out.
        return ""
    return answer.output.strip() if answer.status == 0 else ""


def suite_cache(task: DebugTask, opened: Opened) -> SuiteCache:
    """The cache of the suite of this task's untouched repository.

    The key covers what runs the programs, and the sources. The file name of a packed source has its content hash or
    commit, while a local path stays the same when its files change.
    """
    key = msgspec.json.encode(
        [digest(task, None), opened.programs, opened.source.name if opened.source is not None else ""]
    )
    return SuiteCache(cache_directory() / "suites", hashlib.sha256(key).hexdigest())


class LocalEpisodes:
    """Opens sessions in this process: one for each reset, and another session after a sandbox has died.

    Args:
        task: The task, until another task is given.
        tools: The tools that the agent may call.
        limits: Steps, rewrites, deadline.
        opening: How the task's programs run.
    """

    def __init__(
        self,
        task: DebugTask,
        *,
        tools: Sequence[str | ToolSpec | Tool],
        limits: EpisodeLimits,
        opening: Opening,
    ) -> None:
        self.tools = tuple(tools)
        """The tools of the next episode."""
        self._task = task
        self._limits = limits
        self._opening = opening
        self._opened: Opened | None = None

    async def open(self, task: DebugTask | None) -> Session:
        """Open a session without resetting it. A given ``task`` replaces the task of this and later sessions."""
        self._task = task or self._task
        self._opened = await self._opening.open(self._task)
        return self._session(load_tools(self.tools), self._limits)

    async def resume(self, lost: Session) -> Session:
        """Close ``lost``, whose sandbox has died, and return a new session that has replayed its steps.

        If the sandbox dies during the replay, another session is opened.

        Raises:
            SandboxLost: The replay took too long.
            SandboxStartFailed, SetupFailed: A new sandbox could not be started.
        """
        lost.deadline.pause()
        trajectory = lost.recorded()
        await lost.close()
        limits = msgspec.structs.replace(lost.limits, deadline_seconds=lost.deadline.remaining)
        while True:
            session = self._session(tuple(lost.toolbox.all.values()), limits, trajectory)
            session.record_usage(lost.usage)
            try:
                await session.reset()
                break
            except BaseException as error:
                await session.close()
                if not isinstance(error, SandboxLost) or session.death is None:
                    raise
                trajectory = session.recorded()
        session.evaluation = lost.evaluation
        for name in lost.toolbox.removed:
            session.remove_tool(name)
        return session

    def _session(
        self, tools: Sequence[Tool], limits: EpisodeLimits, trajectory: RecordedTrajectory | None = None
    ) -> Session:
        assert self._opened is not None
        return Session(
            self._task,
            provider=self._opened.provider,
            tools=tools,
            source=self._opened.source,
            limits=limits,
            suite_cache=suite_cache(self._task, self._opened),
            trajectory=trajectory,
        )


Versions = Mapping[str, FileVersion | None]


async def check_task(
    task: DebugTask, opening: Opening, *, repeats: int = 2, progress: Callable[[str], None] = lambda _text: None
) -> Assessment:
    """Run the untouched repository and, if the task has one, the solution ``repeats`` times each.

    Whether the task already passes is cached for later results. A failed setup, an environment that cannot run the
    tests and a solution that does not apply are problems of the assessment.

    Raises:
        InfrastructureError: A sandbox, an image or the source is not available.
    """
    try:
        check = _Check(task, await opening.open(task))
        before = []
        for number in range(1, repeats + 1):
            progress(f"{task.metadata.name}: running the untouched repository ({number} of {repeats})")
            before.append(await check.run(solved=False))
        after = []
        for number in range(1, repeats + 1 if task.spec.solution else 1):
            progress(f"{task.metadata.name}: running the solution ({number} of {repeats})")
            after.append(await check.run(solved=True))
    except (ManifestError, SetupFailed, VerifierFailed) as error:
        return Assessment(
            task=task.metadata.name, problems=(str(error),), unmet=tuple(unmet_requirements_in_output(str(error)))
        )
    assessment = assess(task.metadata.name, check.plan, before, after, check.unmet)
    if check.plan.cache is not None:
        check.plan.cache.set("passes", holds=assessment.passes)
    return assessment


class _Check:
    def __init__(self, task: DebugTask, opened: Opened) -> None:
        self._task = task
        self._opened = opened
        self.plan = ScoringPlan(spec=task.spec)
        self.unmet: list[UnmetRequirement] = []
        """The unmet requirements that the last run of the untouched repository shows."""

    async def run(self, *, solved: bool) -> EntrypointResult:
        """Run the tests once, in a new sandbox."""
        verifier = await self._opened.provider.verifier()
        try:
            baseline = await prepare(verifier, self._task, self._opened.source)
            cache = suite_cache(self._task, self._opened)
            self.plan = scoring_plan(self._task, baseline, ChangeSet(changes={}), cache)
            changed: Versions = await solution_versions(verifier, self._task) if solved else {}
            run = await run_version(verifier, msgspec.structs.replace(self.plan, changed=changed))
            if not solved:
                manifest = await verifier.manifest()
                texts = await read_versions(verifier, manifest, [path for path in BUILD_FILES if path in manifest])
                text = "\n".join(version.data.decode("utf-8", "replace") for version in texts.values())
                self.unmet = find_unmet_requirements(run, manifest, text)
            return run
        finally:
            await verifier.stop()
