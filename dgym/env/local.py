"""Sessions of this process: sandbox, repository and tools of a task on this machine; and the check of a task."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from dgym.api import DebugTask, Environment, Episode, ToolSpec, digest, find_task, load, parse_quantity
from dgym.errors import ManifestError, SandboxStartFailed, SetupFailed, VerifierFailed
from dgym.sandbox import EngineName, EntrypointResult, SandboxKind, SandboxProvider, SandboxSpec
from dgym.sandbox.container import DEFAULT_IMAGE, ContainerProvider, Engine, call, choose_engine, ensure_image
from dgym.sandbox.local import (
    InstalledProject,
    LocalProvider,
    ProjectRequest,
    cache_directory,
    ensure_environment,
    find_version,
    install_project,
    names_version,
    resolve_python,
)
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
from dgym.session.verification import (
    BUILD_FILES,
    Assessment,
    Lack,
    VerificationPlan,
    assess,
    find_lacks,
    lacks_in_output,
    read_versions,
    remember_passing,
    run_version,
)
from dgym.tools import Tool, load_tools
from dgym.workspace.patches import FileVersion
from dgym.workspace.sources import last_tag, pack_source

_GIT_SECONDS = 30.0


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The provider of a task's sandboxes, and a tar of its repository; None if the image holds the repository.

    ``programs`` names what its programs are run with.
    """

    provider: SandboxProvider
    source: Path | None
    programs: str


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what a task's programs run on this machine."""

    sandbox: SandboxKind = "auto"
    engine: EngineName = "auto"
    python: str | None = None
    build_requirements: bool = False
    progress: Callable[[str], None] | None = None

    async def open(self, task: DebugTask) -> Opened:
        """What opens the task's sandboxes, once requirements and project are installed or the image is there.

        Raises:
            SetupFailed: The requirements or the project could not be installed.
            SourceFailed: The repository could not be obtained.
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
        """The project of ``source``, the tar of the task's repository, installed for sandboxes outside containers.

        Raises:
            SetupFailed: The requirements or the project could not be installed.
            ManifestError: ``python`` is neither an interpreter nor a virtual environment, or the declaration does not
                fit the repository.
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
        """The specification of a sandbox outside containers; the ``requirements`` are installed if they are not yet.

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
        """The interpreter that environments are made from; None: the one that runs dgym."""
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
    """The task itself, that of a manifest with one DebugTask or one Episode, or the bundled task of this name.

    Raises:
        ManifestError: The manifest is wrong or has not exactly one task, or there is neither a file nor a bundled task.
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
        return find_task(episodes[0], tasks or _bundled_tasks())
    found = f"{len(tasks)} DebugTasks and {len(episodes)} Episodes"
    raise ManifestError(f"{task}: has {found}, not one of either; pass one of dgym.load() instead")


def _bundled_task(name: str) -> DebugTask:
    tasks = {task.metadata.name: task for task in _bundled_tasks()}
    if name not in tasks:
        raise ManifestError(f"{name}: no such file and no bundled task; bundled tasks are {', '.join(tasks)}")
    return tasks[name]


def _bundled_tasks() -> list[DebugTask]:
    from dgym.benchmarks import bundled, load_bundled

    return [task for benchmark in bundled() for task in load_bundled(benchmark)]


async def open_source(task: DebugTask) -> Path | None:
    """A tar of the task's repository in the cache; None when it has no source.

    Raises:
        SourceFailed: It could not be obtained.
    """
    if task.spec.source is None:
        return None
    return await pack_source(task.spec.source, base=Path.cwd(), cache=cache_directory() / "sources")


async def _last_tag(task: DebugTask, packed: Path) -> str:
    """The last tag of the task's repository, for build backends that read a version from git; "" if it is not known."""
    source = task.spec.source
    if source is None or (source.local_path is None and source.git is None):
        return ""
    if source.git is not None:
        return await last_tag(source.git, packed, is_needed=lambda: not names_version(packed))
    try:
        answer = await call("git", ("-C", str(source.local_path), "describe", "--tags", "--abbrev=0"), _GIT_SECONDS)
    except SandboxStartFailed:  # Git is missing, or does not answer in time.
        return ""
    return answer.output.strip() if answer.status == 0 else ""


def suite_cache(task: DebugTask, opened: Opened) -> SuiteCache:
    """Where the suite of this task's untouched repository is remembered.

    The key has what runs the programs, and the sources: a packed source is named by its content or commit, while a
    local path stays the same when its files change.
    """
    key = msgspec.json.encode(
        [digest(task, None), opened.programs, opened.source.name if opened.source is not None else ""]
    )
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
        self.tools = tuple(tools)
        """What the agent of the next episode may call."""
        self._task = task
        self._limits = limits
        self._opening = opening

    async def open(self, task: DebugTask | None) -> Session:
        """A session that is not reset yet; ``task`` is what this one and later ones are about."""
        self._task = task or self._task
        opened = await self._opening.open(self._task)
        return Session(
            self._task,
            provider=opened.provider,
            tools=load_tools(self.tools),
            source=opened.source,
            limits=self._limits,
            suite_cache=suite_cache(self._task, opened),
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
        return Assessment(task=task.metadata.name, problems=(str(error),), lacks=tuple(lacks_in_output(str(error))))
    assessment = assess(task.metadata.name, check.plan, before, after, check.lacks)
    remember_passing(check.plan, passes=assessment.passes)
    return assessment


class _Check:
    def __init__(self, task: DebugTask, opened: Opened) -> None:
        self._task = task
        self._opened = opened
        self.plan = VerificationPlan(entrypoint=task.spec.entrypoint, changed={})
        self.lacks: list[Lack] = []
        """Of the last run of the untouched repository."""

    async def run(self, *, solved: bool) -> EntrypointResult:
        """One run in a sandbox of its own."""
        verifier = await self._opened.provider.verifier()
        try:
            baseline = await prepare(verifier, self._task, self._opened.source)
            cache = suite_cache(self._task, self._opened)
            self.plan = verification_plan(self._task, baseline, ChangeSet(changes={}), cache)
            changed: Versions = await solution_versions(verifier, self._task) if solved else {}
            run = await run_version(verifier, msgspec.structs.replace(self.plan, changed=changed))
            if not solved:
                manifest = await verifier.manifest()
                texts = await read_versions(verifier, manifest, [path for path in BUILD_FILES if path in manifest])
                text = "\n".join(version.data.decode("utf-8", "replace") for version in texts.values())
                self.lacks = find_lacks(run, manifest, text)
            return run
        finally:
            await verifier.stop()
