"""Installs the project of a repository as its developers do: ``pip install -e .``, offline, inside a sandbox.

The installation is made once for a source and an environment. Two archives are kept in the cache: the files that the
build wrote into the repository (version files, metadata, extension modules), and the files of the overlay. Each sandbox
and verifier unpacks both, so that the files belong to the baseline and not to the patch.

All files that a build writes are untrusted. The archives are unpacked only inside sandboxes of the same task.
"""

import asyncio
import hashlib
import re
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from dgym.api import Environment, split_hashes
from dgym.decoding import DECODE_ERRORS
from dgym.errors import ManifestError, SetupFailed
from dgym.locks import hold_lock, whole_in_thread
from dgym.sandbox._cache import cache_directory, runner_digest
from dgym.sandbox._protocol import ManifestEntry, RunResult, SandboxSpec
from dgym.sandbox.local._environments import Progress, ensure_environment, requirement_name
from dgym.sandbox.local._interpreter import inspect_interpreter, resolve_python
from dgym.sandbox.local._overlay import BASE_FILE, CARGO_HOME, ProjectLayer, distribution_names
from dgym.sandbox.local._provider import LocalProvider, LocalSandbox, chunks_of
from dgym.sandbox.local._rust import Rust, find_rust, needs_rust
from dgym.untrusted import parse_toml

T = TypeVar("T")

_PIP = "pip>=21.3,<25.3"
"""21.3 is the first version with PEP 660. Since 25.3 pip cannot install in editable mode with setuptools before 64."""
_INSTALL = (
    "PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1"
    " pip install --no-deps --no-build-isolation --no-index --no-compile"
)
_LEGACY = ("setuptools>=40.8.0", "wheel")
_LEGACY_BACKEND = "setuptools.build_meta:__legacy__"
_VERSION_VARIABLES = {
    "SETUPTOOLS_SCM_PRETEND_VERSION": ("setuptools-scm", "hatch-vcs", "vcs-versioning"),
    "PBR_VERSION": ("pbr",),
    "PDM_BUILD_SCM_VERSION": ("pdm-backend",),
    "POETRY_DYNAMIC_VERSIONING_BYPASS": ("poetry-dynamic-versioning",),
    "UV_DYNAMIC_VERSIONING_BYPASS": ("uv-dynamic-versioning",),
}
"""Environment variables that set the version for tools that otherwise read it from git. A sandbox has no ``.git``."""
_READ_PKG_INFO = frozenset({"versioningit", "setuptools-git-versioning"})
"""Tools without such a variable, which read the version from ``PKG-INFO`` without a ``.git``."""
_PLAIN = re.compile(r"[A-Za-z0-9._+!-]+")
_UNKNOWN_VERSION = "0.0.0"
_VERSION = re.compile(r"\d+(\.\d+)+(\.?(a|b|rc|dev|post)\d+)?", re.IGNORECASE)
_TAG = f"""\
command -v git >/dev/null || exit 0
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
for role in AUTHOR COMMITTER; do
  export GIT_${{role}}_NAME=dgym GIT_${{role}}_EMAIL=dgym@localhost GIT_${{role}}_DATE='2000-01-01T00:00:00Z'
done
git -c init.defaultBranch=main init -q --template= && mkdir -p .git/info && git -c core.compression=0 add -A &&
git commit -q --allow-empty --no-verify --no-gpg-sign -m 'The last tag' && echo '*' >.git/info/exclude &&
{{ git tag -m 'The last tag' -- "$0" || git tag -m 'The last tag' {_UNKNOWN_VERSION}; }} || rm -rf .git"""
"""Creates a git repository that has the tag in ``$0`` and no uncommitted changes."""
_BUILD_SECONDS = 1800.0
_HOOK_SECONDS = 300.0
_ROUNDS = 3
_KEPT_SECONDS = 8 * 86400
_MOST_BYTES = 3 * 1024**3
_MOST_FILES = 100_000
_FILE_BYTES = 1024**2
_TAIL_LINES = 25
_DEPTH = 64
_FORMAT = 5


class ProjectRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of an installation.

    Attributes:
        environment: ``environment`` of the task.
        sandbox: Specification of the sandboxes. Its ``python`` is an interpreter of the user; None: a virtual
            environment is created.
        kind: Kind of the sandboxes.
        python: Interpreter for which virtual environments are created; None: the interpreter that runs dgym.
        tag: Last tag of the repository, for build backends that read the version from git.
        build_requirements: Whether requirements may be built outside the sandbox.
        writable: Whether setup commands can install packages even if the project is not installed.
    """

    environment: Environment
    sandbox: SandboxSpec
    kind: Literal["bubblewrap", "none"]
    python: str | None = None
    tag: str = ""
    build_requirements: bool = False
    writable: bool = False


class InstalledProject(msgspec.Struct, frozen=True, kw_only=True):
    """An installation, with which sandboxes are started.

    Attributes:
        sandbox: Specification of the sandboxes, with the interpreter of the virtual environment.
        name: Digest of the inputs of the installation.
        layer: The installed project. None: the project is not installed, and packages cannot be installed either.
        requirements: Requirements of the virtual environment: those of the task and the project's dependencies.
        build_requirements: Requirements of the project's build.
        variables: Environment variables that the build needs, such as the version that git would provide.
        files: Files in the repository that the build needs for the same reason, with their text.
    """

    sandbox: SandboxSpec
    name: str
    layer: ProjectLayer | None = None
    requirements: tuple[str, ...] = ()
    build_requirements: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    files: Mapping[str, str] = {}


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """An installation in the cache. ``installed`` is false if the repository has no build system or opts out."""

    installed: bool
    requirements: tuple[str, ...]
    build_requirements: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    files: dict[str, str] = {}
    places: tuple[str, str] = ("", "")
    rust: Rust | None = None
    built: tuple[str, ...] = ()


class _Build(msgspec.Struct, frozen=True, kw_only=True):
    """The table ``build-system`` of ``pyproject.toml``."""

    backend: str = _LEGACY_BACKEND
    backend_path: tuple[str, ...] = ()
    requires: tuple[str, ...] = _LEGACY


class _Missing(msgspec.Struct, frozen=True):
    missing: tuple[str, ...]


class _Described(msgspec.Struct, frozen=True):
    name: str
    version: str
    extras: tuple[str, ...]
    dependencies: tuple[str, ...]


async def install_project(source: Path, request: ProjectRequest, progress: Progress | None = None) -> InstalledProject:
    """Install the project in ``source``, a tar of the repository, unless the installation is in the cache.

    Raises:
        SetupFailed: The requirements could not be installed, or the project could not be built.
        ManifestError: ``environment`` of the task does not match the repository.
    """
    notify = progress or (lambda _: None)
    place = cache_directory() / "projects" / _key(source, request)
    if (record := _load(place)) is None:
        async with hold_lock(
            place.with_name(f"{place.name}.lock"),
            waiting=lambda: notify("waiting for another process that installs the same project"),
            timeout_seconds=_BUILD_SECONDS,
            error=SetupFailed,
        ):
            record = _load(place) or await _install(source, request, place, notify)
    python = request.sandbox.python or await _environment(record.requirements, request, notify)
    sandbox = msgspec.structs.replace(request.sandbox, python=python)
    if not record.installed:
        layer = await _empty_layer(python, request) if request.writable else None
        return InstalledProject(sandbox=sandbox, name=place.name, layer=layer, requirements=record.requirements)
    return InstalledProject(
        sandbox=msgspec.structs.replace(sandbox, environment={**record.variables, **sandbox.environment}),
        name=place.name,
        layer=ProjectLayer(
            build_python=await _build_environment(record.build_requirements, python, request, notify),
            tools=_tools(record.requirements, request),
            archives=(place / "workspace.tar", place / "environment.tar"),
            places=record.places,
            rust=record.rust,
            built=record.built,
        ),
        requirements=record.requirements,
        build_requirements=record.build_requirements,
        variables=record.variables,
        files=record.files,
    )


def _key(source: Path, request: ProjectRequest) -> str:
    python = inspect_interpreter(resolve_python(request.sandbox.python or request.python or sys.executable))
    described = [_FORMAT, runner_digest(), source.parent.name, source.name, request, vars(python)]
    return hashlib.sha256(msgspec.json.encode(described)).hexdigest()[:32]


def _load(place: Path) -> _Record | None:
    try:
        return msgspec.json.decode((place / "project.json").read_bytes(), type=_Record)
    except (OSError, *DECODE_ERRORS):
        return None


async def _install(source: Path, request: ProjectRequest, place: Path, notify: Progress) -> _Record:
    files = _read_files(source, ("pyproject.toml", "setup.py"))
    pyproject = await asyncio.to_thread(_parse, files.get("pyproject.toml"))
    wanted = request.environment
    in_groups = _group_requirements(pyproject, wanted.groups)
    pinned = {requirement_name(each) for each in wanted.requirements if split_hashes(each)[1]}
    declared = (*wanted.requirements, *(each for each in in_groups if requirement_name(each) not in pinned))
    building = Path(tempfile.mkdtemp(prefix="building-", dir=place.parent))
    try:
        if _is_installed(wanted, files, pyproject):
            build = _build_of(pyproject)
            record = await _Installer(source, request, build, declared, building, notify).run()
        elif wanted.extras:
            raise ManifestError(
                "environment.extras: the repository is not installed, so it has no extras; remove them, or set "
                "environment.install to 'editable'"
            )
        else:
            record = _Record(installed=False, requirements=declared)
        (building / "project.json").write_bytes(msgspec.json.encode(record))
        await whole_in_thread(lambda: _move(building, place))
    except BaseException:
        await whole_in_thread(lambda: shutil.rmtree(building, ignore_errors=True))
        raise
    return record


def _move(building: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    building.rename(place)
    _remove_unused(place.parent)


def _remove_unused(directory: Path) -> None:
    """Remove installations that are so old that no running episode can use them."""
    oldest = time.time() - _KEPT_SECONDS
    for path in directory.iterdir():
        with suppress(OSError):
            if path.is_dir() and path.stat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)


class _Installer:
    """One installation, in a sandbox that has the task's requirements and the build requirements."""

    def __init__(
        self,
        source: Path,
        request: ProjectRequest,
        build: _Build,
        declared: Sequence[str],
        target: Path,
        notify: Progress,
    ) -> None:
        self._source = source
        self._request = request
        self._build = build
        self._declared = tuple(declared)
        self._target = target
        self._notify = notify
        self._rust: Rust | None = None

    async def run(self) -> _Record:
        """Install the project and write both archives into the target directory."""
        requires = tuple(dict.fromkeys((*self._build.requires, _PIP)))
        python = self._request.sandbox.python or await _environment(self._declared, self._request, self._notify)
        for _ in range(_ROUNDS):
            if self._rust is None and needs_rust(map(requirement_name, requires)):
                self._rust = await find_rust(self._source, self._notify)
            build_python = await _build_environment(requires, python, self._request, self._notify)
            sandbox = await self._open(python, build_python)
            try:
                # Before the first call of the build backend, because setuptools then writes metadata.
                before = await sandbox.manifest()
                if missing := await self._missing(sandbox):
                    requires = (*requires, *missing)
                    continue
                described = await self._install(sandbox)
                files = self._files(requires, described)
                for path, text in files.items():
                    await sandbox.write_file(path, text.encode())
                places = (sandbox.workspace, sandbox.overlay)
                built = await self._save(sandbox, before)
            finally:
                await sandbox.stop()
            self._check_extras(described)
            named = {requirement_name(requirement) for requirement in self._declared}
            more = [each for each in described.dependencies if requirement_name(each) not in named]
            return _Record(
                installed=True,
                requirements=self._declared if self._request.sandbox.python else (*self._declared, *more),
                build_requirements=requires,
                variables=self._variables(requires),
                files=files,
                places=places,
                rust=self._rust,
                built=built,
            )
        lacking = ", ".join(missing)
        raise SetupFailed(f"the project's build backend {self._build.backend} still lacks {lacking} after an install")

    async def _open(self, python: str, build_python: str) -> LocalSandbox:
        spec = self._request.sandbox
        variables = dict.fromkeys(_VERSION_VARIABLES, _version(self._request.tag))
        spec = msgspec.structs.replace(spec, python=python, environment={**variables, **spec.environment})
        layer = ProjectLayer(build_python=build_python, tools=_tools(self._declared, self._request), rust=self._rust)
        provider = LocalProvider(spec, kind=self._request.kind, project=layer)
        sandbox = await provider.sandbox()
        try:
            await sandbox.put_archive(chunks_of(self._source))
            # Other tools read the version from git, and the sandbox does not have the repository's history.
            tag = _quoted(self._request.tag or _UNKNOWN_VERSION)
            await sandbox.run(f"sh -c {_quoted(_TAG)} {tag}", timeout_seconds=_HOOK_SECONDS)
        except BaseException:
            await sandbox.stop()
            raise
        return sandbox

    async def _missing(self, sandbox: LocalSandbox) -> tuple[str, ...]:
        asked = {"backend": self._build.backend, "backend_path": self._build.backend_path}
        return (await self._ask(sandbox, asked, _Missing)).missing

    async def _install(self, sandbox: LocalSandbox) -> _Described:
        self._notify("installing the project in editable mode, inside a sandbox")
        before = await self._overlay_files(sandbox)
        result = await sandbox.run(f"{_INSTALL} --use-pep517 -e .", timeout_seconds=_BUILD_SECONDS)
        if "missing the 'build_editable' hook" in result.text:
            result = await sandbox.run(f"{_INSTALL} -e .", timeout_seconds=_BUILD_SECONDS)
        if result.exit_status != 0:
            raise SetupFailed(_failure("the project could not be installed (pip install -e .)", result))
        after = await self._overlay_files(sandbox)
        self._new = sorted(path for path, state in after.items() if before.get(path) != state)
        places = [sandbox.workspace, sandbox.overlay]
        return await self._ask(sandbox, {"installed": places, "extras": self._request.environment.extras}, _Described)

    async def _overlay_files(self, sandbox: LocalSandbox) -> dict[str, tuple[int, int]]:
        entries = await sandbox.list_directory(sandbox.overlay, depth=_DEPTH, limit=_MOST_FILES)
        return {
            entry.path: (entry.size, entry.mtime_ns)
            for entry in entries
            if entry.type in ("file", "symlink")
            and not entry.path.endswith((".pyc", BASE_FILE))
            and not entry.path.startswith(f"{CARGO_HOME}/")
            and not entry.target.startswith("/")
        }

    async def _save(self, sandbox: LocalSandbox, before: Mapping[str, ManifestEntry]) -> tuple[str, ...]:
        """Write both archives, and return the new paths of the workspace."""
        after = await sandbox.manifest()
        built = [
            path
            for path, entry in after.items()
            if entry != before.get(path) and entry.type in ("file", "symlink") and not entry.target.startswith("/")
        ]
        for paths, place, name in ((built, ".", "workspace.tar"), (self._new, sandbox.overlay, "environment.tar")):
            (self._target / name).touch()
            if paths:
                await _write(sandbox.get_archive(paths, path=place), self._target / name)
        return tuple(path for path in built if path not in before)

    async def _ask(self, sandbox: LocalSandbox, asked: Mapping[str, Any], kind: type[T]) -> T:
        line = f'exec python "$DGYM_RUNNER/project.py" {_quoted(msgspec.json.encode(asked).decode())}'
        result = await sandbox.run(line, timeout_seconds=_HOOK_SECONDS, report=True)
        if result.exit_status != 0:
            raise SetupFailed(_failure("the project cannot be built", result))
        try:
            return msgspec.json.decode(result.report, type=kind)
        except DECODE_ERRORS as error:
            raise SetupFailed(f"the project cannot be built: its description is not readable: {error}") from None

    def _check_extras(self, described: _Described) -> None:
        known = {requirement_name(extra) for extra in described.extras}
        for extra in self._request.environment.extras:
            if requirement_name(extra) not in known:
                available = ", ".join(sorted(described.extras)) or "none"
                raise ManifestError(
                    f"environment.extras: {described.name} has no extra {extra!r}; it has these: {available}"
                )

    def _variables(self, requires: Iterable[str]) -> dict[str, str]:
        named = {requirement_name(requirement) for requirement in requires}
        version = _version(self._request.tag)
        return {variable: version for variable, tools in _VERSION_VARIABLES.items() if not named.isdisjoint(tools)}

    def _files(self, requires: Iterable[str], described: _Described) -> dict[str, str]:
        plain = all(_PLAIN.fullmatch(text) for text in (described.name, described.version))
        if not plain or _READ_PKG_INFO.isdisjoint(map(requirement_name, requires)):
            return {}
        return {"PKG-INFO": f"Metadata-Version: 2.1\nName: {described.name}\nVersion: {described.version}\n"}


def _version(tag: str) -> str:
    found = _VERSION.search(tag) or re.search(r"(?<=^v)\d+$|^\d+$", tag)
    return _UNKNOWN_VERSION if found is None else found.group().lower()


def names_version(source: Path) -> bool:
    """True if ``pyproject.toml`` in a tar that dgym wrote contains the version of the project."""
    try:
        pyproject = _parse(_read_files(source, ("pyproject.toml",)).get("pyproject.toml"))
    except SetupFailed:  # The installation reports this error.
        return True
    return "version" in pyproject.get("project", {})


def _tools(requirements: Iterable[str], request: ProjectRequest) -> tuple[str, ...]:
    if request.sandbox.python is not None:
        return ()
    named = {requirement_name(requirement) for requirement in requirements}
    return tuple(tool for tool in ("pip", "setuptools", "wheel") if tool not in named)


async def _environment(requirements: Sequence[str], request: ProjectRequest, notify: Progress) -> str:
    return await ensure_environment(
        requirements, python=request.python, build_requirements=request.build_requirements, progress=notify
    )


async def _build_environment(requires: Sequence[str], python: str, request: ProjectRequest, notify: Progress) -> str:
    """Return the interpreter of an environment that has the build requirements, for the same Python as ``python``.

    If the interpreter of the user already has them, it is returned.
    """
    interpreter = inspect_interpreter(resolve_python(python))
    names = {requirement_name(requirement) for requirement in requires}
    if request.sandbox.python is not None and names <= distribution_names(interpreter):
        return interpreter.executable
    try:
        path = await ensure_environment(
            requires,
            python=interpreter.base_executable,
            build_requirements=request.build_requirements,
            with_pytest=False,
            progress=notify,
        )
    except SetupFailed as error:
        raise SetupFailed(
            f"the project's build requirements ({', '.join(requires)}) could not be installed; set environment.install "
            f"to 'none' if the tests do not need an installed project: {error}"
        ) from None
    return resolve_python(path)


async def _empty_layer(python: str, request: ProjectRequest) -> ProjectLayer:
    """Return a layer without an installed project, but with pip if Python includes it and the environment lacks it."""
    interpreter = inspect_interpreter(resolve_python(python))
    if request.sandbox.python is None and "pip" not in distribution_names(interpreter):
        with suppress(SetupFailed):
            path = await ensure_environment((), python=interpreter.base_executable, with_pytest=False)
            return ProjectLayer(build_python=resolve_python(path), tools=("pip",))
    return ProjectLayer(build_python=interpreter.executable)


def _is_installed(wanted: Environment, files: Mapping[str, bytes], pyproject: Mapping[str, Any]) -> bool:
    has_build = "setup.py" in files or "build-system" in pyproject or "project" in pyproject
    if wanted.install == "editable" and not has_build:
        raise ManifestError(
            "environment.install: 'editable' needs a pyproject.toml with a table build-system or project, or a "
            "setup.py; the repository has neither"
        )
    return has_build and wanted.install != "none"


def _build_of(pyproject: Mapping[str, Any]) -> _Build:
    table = pyproject.get("build-system")
    if table is None:
        return _Build()
    try:
        requires = msgspec.convert(table.get("requires", []), tuple[str, ...])
        backend = msgspec.convert(table.get("build-backend", _LEGACY_BACKEND), str)
        backend_path = msgspec.convert(table.get("backend-path", []), tuple[str, ...])
    except (AttributeError, msgspec.ValidationError) as error:
        raise SetupFailed(f"pyproject.toml: build-system: {error}") from None
    if "build-backend" not in table:
        requires = tuple(dict.fromkeys((*requires, *_LEGACY)))
    return _Build(backend=backend, backend_path=backend_path, requires=requires)


def _group_requirements(pyproject: Mapping[str, Any], groups: Sequence[str]) -> list[str]:
    """Return the requirements of dependency groups (PEP 735), including those of included groups."""
    table = pyproject.get("dependency-groups", {})
    known = {requirement_name(name): items for name, items in table.items()} if isinstance(table, dict) else {}
    found: dict[str, None] = {}
    queue, seen = [requirement_name(group) for group in groups], set[str]()
    while queue:
        group = queue.pop(0)
        if group in seen:
            continue
        seen.add(group)
        if group not in known:
            available = ", ".join(sorted(known)) or "none"
            raise ManifestError(
                f"environment.groups: pyproject.toml has no dependency group {group!r}; it has these: {available}"
            )
        for item in known[group]:
            if isinstance(item, str):
                found[item] = None
            elif isinstance(item, dict) and isinstance(item.get("include-group"), str):
                queue.append(requirement_name(item["include-group"]))
    return list(found)


def _parse(data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {}
    tables = parse_toml(data)
    if tables is None:
        raise SetupFailed(
            "pyproject.toml cannot be read: it is not valid TOML, has more than 512 KiB or exceeds the limits of the "
            "parser; correct it"
        )
    return tables


def _read_files(source: Path, wanted: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of regular files at the root of a tar that dgym wrote."""
    found = {}
    with tarfile.open(source, encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.name in wanted and member.isreg() else None
            if stream is not None:
                found[member.name] = stream.read(_FILE_BYTES)
    return found


def _failure(what: str, result: RunResult) -> str:
    tail = "\n".join(result.text.strip().splitlines()[-_TAIL_LINES:])
    return (
        f"{what}: ended by {result.ended_by} with status {result.exit_status}; name what is missing in "
        "environment.requirements, or set environment.install to 'none' if the tests do not need an installed project\n"
        f"{tail}"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


async def _write(chunks: AsyncIterator[bytes], path: Path) -> None:
    written = 0
    with path.open("wb") as file:
        async for chunk in chunks:
            written += len(chunk)
            if written > _MOST_BYTES:
                raise SetupFailed(f"the installed project has more than {_MOST_BYTES} bytes")
            file.write(chunk)
