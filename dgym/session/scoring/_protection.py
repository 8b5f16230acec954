"""Select the files that affect the tests, and write them into the verifier's workspace.

They are taken from the untouched repository and not from the agent. Copies are kept of those that must be restored.
"""

import errno
import hashlib
import io
import posixpath
import re
import shlex
import tarfile
import tempfile
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import IO

import msgspec

from dgym.errors import PatchError, VerifierFailed
from dgym.sandbox import FileStat, ManifestEntry, Sandbox
from dgym.untrusted import TEXT_LIMIT, parse_toml
from dgym.workspace import ancestors
from dgym.workspace.patches import FileVersion, apply_patch, patched_paths

_CHUNK_BYTES = 256 * 1024
_COPY_SECONDS = 600.0
_IN_MEMORY_BYTES = 8 * 1024**2
_OVERLAY_FILES = 100_000
_OVERLAY_DEPTH = 64
_PERMISSIONS = 0o777
# The contents are copied without the workspace itself, which may be a mount point that belongs to another user.
_COPY = r"""
copy_into() { find . -mindepth 1 -maxdepth 1 -exec sh -c 'cp -a "$@" "$0/"' "$1" {} +; }
empty() {
  find "$1" -mindepth 1 -type d ! -perm -700 -exec chmod u+rwx {} \;
  find "$1" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
}
"""
_SAVE = _COPY + 'umask 077; d=$(mktemp -d) && copy_into "$d" && printf %s "$d"'
_RESTORE = _COPY + 'w=$PWD; empty . && cd "$DGYM_COPY" && copy_into "$w" && empty . && rmdir "$DGYM_COPY"'
CONFIGURATION_NAMES = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "sitecustomize.py",
        "usercustomize.py",
    }
)
_HIJACKING_MODULES = frozenset({"pytest", "_pytest", "sitecustomize", "usercustomize"})
_METADATA_SUFFIXES = (".dist-info", ".egg-info", ".egg")
_LIBRARIES_OF_TESTS = frozenset(
    {
        *("cmath", "decimal", "difflib", "doctest", "fractions", "hypothesis", "math", "mock", "nose", "numpy"),
        *("operator", "pandas", "parameterized", "py", "testtools", "unittest"),
    }
)
ADDED_TESTS = "tests that were added do not count"
PYTEST_SECTION = "its section about pytest differs"
_SOURCE_ROOTS = ("", "src/", "lib/")
TEST_DIRECTORIES = frozenset({"test", "tests"})
_MODULE_SUFFIXES = (".py", ".so", ".pyc")


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """The protected paths of a repository.

    Attributes:
        pristine: All paths of the untouched repository.
        files: Files that stay as they are in the untouched repository.
        directories: Directories whose contents stay as they are in the untouched repository.
    """

    pristine: frozenset[str]
    files: frozenset[str]
    directories: frozenset[str]

    def why_refused(self, path: str) -> str | None:
        """Why a change of ``path`` is not scored; None if it is."""
        if path in self.files:
            return "it affects the tests"
        if path not in self.pristine and (why := self.why_dropped(path)) is not None:
            return why
        below = path + "/"
        if any(path.startswith(directory + "/") or directory == path for directory in self.directories):
            return "it is in a directory of tests"
        if any(file.startswith(below) for file in self.files) or any(d.startswith(below) for d in self.directories):
            return "it replaces a directory that contains tests"
        if any(path.startswith(file + "/") for file in self.files):
            return "its directory replaces a test file"
        return None

    def why_dropped(self, path: str) -> str | None:
        """Why a new file is left out of scoring; None if it is not.

        If the repository has a package of the test framework's name, it is the framework itself, and may get new files.
        """
        for directory in _hijacking_directories(path):
            if not any(known.startswith(directory + "/") for known in self.pristine):
                return "a new package of this name would replace the test framework"
        for root in _SOURCE_ROOTS:
            if path.startswith(root) and self._shadows_library(path[len(root) :], root):
                return "a new module of this name would replace a library that tests use to compare values"
        return why_dropped(path)

    def _shadows_library(self, path: str, root: str) -> bool:
        first, _, below = path.partition("/")
        stem = first.partition(".")[0]
        if not (below or first.endswith(_MODULE_SUFFIXES)):
            return False
        if stem not in _LIBRARIES_OF_TESTS:
            return False
        return not any(known.startswith((f"{root}{stem}/", f"{root}{stem}.")) for known in self.pristine)

    def is_restored(self, path: str) -> bool:
        """Whether a path of the untouched repository is restored after commands that run the agent's code."""
        return path in self.files or any(path.startswith(directory + "/") for directory in self.directories)


def protect(pristine: Iterable[str], test_ids: Iterable[str], more: Iterable[str] = ()) -> Protection:
    """The protection of a repository with the paths ``pristine`` and the tests ``test_ids``.

    A test id has the path relative to pytest's root directory, which may be below the workspace. So files are matched
    by the end of their paths. ``more`` are paths that scoring itself writes.
    """
    paths = frozenset(pristine)
    wanted = {identifier.partition("::")[0] for identifier in test_ids}
    tests = {path for path in paths if any(tail in wanted for tail in _tails(path))} | set(more)
    directories = {directory for file in tests if (directory := _test_directory(file)) is not None}
    configuration = {path for path in paths if affects_tests(path)}
    return Protection(pristine=paths, files=frozenset(tests | configuration), directories=frozenset(directories))


def affects_tests(path: str) -> bool:
    """Whether pytest or Python reads a file of this name automatically."""
    directory, _, name = path.rpartition("/")
    if name == "entry_points.txt" and directory.endswith(_METADATA_SUFFIXES):
        return True
    return name in CONFIGURATION_NAMES or name.endswith(".pth")


def why_dropped(path: str) -> str | None:
    """Why a new file of this name is left out of scoring, in any directory; None if it is not."""
    name = path.rpartition("/")[2]
    stem = name.partition(".")[0]
    if any(part.endswith(_METADATA_SUFFIXES) for part in path.split("/")):
        return "new metadata of a distribution would load plugins"
    if affects_tests(path):
        return "a new file of this name would affect the tests"
    if _hijacks(stem) and (name.endswith(_MODULE_SUFFIXES) or "." not in name):
        return "a new module of this name would replace the test framework"
    if name.endswith(".py") and (name.startswith("test_") or stem.endswith("_test")):
        return ADDED_TESTS
    return None


def select_changes(
    changed: Mapping[str, FileVersion | None], protection: Protection, pyproject: bytes | None
) -> tuple[dict[str, FileVersion | None], dict[str, str]]:
    """Divide ``changed`` into the changes that the verifier receives and the reasons why the others are refused.

    ``pyproject`` is the original pyproject.toml of the workspace, whose pytest section must not change. Blocks while a
    separate process parses a changed file.
    """
    allowed: dict[str, FileVersion | None] = {}
    refused: dict[str, str] = {}
    for path, version in changed.items():
        why = protection.why_refused(path)
        if why is None and path.rpartition("/")[2] == "pyproject.toml":
            why = _why_pyproject_refused(path, version, pyproject)
        if why is None:
            allowed[path] = version
        else:
            refused[path] = why
    return allowed, refused


def _why_pyproject_refused(path: str, version: FileVersion | None, original: bytes | None) -> str | None:
    before = _pytest_section(original) if path == "pyproject.toml" else {}
    after = _pytest_section(version.data if version is not None else None)
    return None if before == after and after is not None else PYTEST_SECTION


def _pytest_section(data: bytes | None) -> object:
    """The section about pytest; None if the file cannot be parsed."""
    # A key can be written with escapes, so the section is only certainly missing if the text has no backslash.
    if data is None or (b"pytest" not in data and b"\\" not in data and len(data) <= TEXT_LIMIT):
        return {}
    tables = parse_toml(data)
    if tables is None:
        return None
    tool = tables.get("tool", {})
    return tool.get("pytest", {}) if isinstance(tool, dict) else {}


def _hijacks(module: str) -> bool:
    return module in _HIJACKING_MODULES or module.startswith("pluggy")


def _hijacking_directories(path: str) -> Iterable[str]:
    parts = path.split("/")[:-1]
    return ("/".join(parts[: index + 1]) for index, part in enumerate(parts) if _hijacks(part))


def _tails(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))


def _test_directory(path: str) -> str | None:
    """The topmost directory above ``path`` that has the name of a test directory."""
    directories = path.split("/")[:-1]
    for index, name in enumerate(directories):
        if name in TEST_DIRECTORIES:
            return "/".join(directories[: index + 1])
    return None


_SHELL = re.compile(r"[;&|<>()`$\n]")

_CHANGE_DIRECTORY = re.compile(r"^\s*cd\s+[\w./+-]+\s*&&\s*")

_PYTHON_FIRST = re.compile(r"^\s*(?:\w+=\S*\s+)*(?:env\s+)?(?:\S*/)?(?:python|pypy|pytest|py\.test)[\w.]*(?:\s|$)")

_READ_BY = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "gmake": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile", ".justfile"),
    "invoke": ("tasks.py",),
    "inv": ("tasks.py",),
    "nox": ("noxfile.py",),
}

_INCLUDED_SUFFIX = ".mk"


def files_of_shell_line(entrypoint: str, pristine: Collection[str]) -> list[str]:
    """Paths that ``entrypoint`` contains, or that a program in it reads automatically. They need not exist.

    Words that end in ``.py`` and directories of the untouched repository are left out.
    """
    rest = _CHANGE_DIRECTORY.sub("", entrypoint)
    if _PYTHON_FIRST.match(rest) and not _SHELL.search(rest):
        return []
    words = _words(entrypoint)
    directories = {above for path in pristine for above in ancestors(path)}
    places = ["", *(word for word in words if posixpath.normpath(word) in directories)]
    named = [posixpath.normpath(posixpath.join(place, word)) for place in places for word in _programs_and_files(words)]
    if any(posixpath.basename(word) in ("make", "gmake") for word in words):
        named += [path for path in pristine if path.endswith(_INCLUDED_SUFFIX)]
    return sorted(
        {path for path in named if path not in {*directories, ".", ".."} and not path.startswith(("../", "/"))}
    )


def _words(line: str) -> list[str]:
    """The words of a shell line, and of its quoted parts, which another shell may run."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        words = line.split()
    inner = [word for word in words if re.search(r"\s", word)]
    return words + [part for word in inner for part in word.split()]


def _programs_and_files(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        yield from _READ_BY.get(posixpath.basename(word), ())
        if re.fullmatch(r"[\w./+@=-]+", word) and not word.endswith(".py") and not word.startswith("-"):
            yield word


async def write_versions(sandbox: Sandbox, versions: Mapping[str, FileVersion | None]) -> None:
    """Write the version of every path; None removes the path.

    Each path is removed first, so files are never written through a link.
    """
    if not versions:
        return
    await sandbox.remove(sorted(versions))
    present = {path: version for path, version in versions.items() if version is not None}
    if present:
        await sandbox.put_archive(_chunks(_tar(present)))


async def read_versions(
    sandbox: Sandbox, manifest: Mapping[str, ManifestEntry], paths: Iterable[str]
) -> dict[str, FileVersion]:
    """Read the current versions of those ``paths`` that exist."""
    versions = {}
    for path in paths:
        entry = manifest.get(path)
        if entry is None:
            continue
        if entry.type == "symlink":
            data = entry.target.encode("utf-8", "surrogateescape")
            versions[path] = FileVersion(data, 0o777, is_symlink=True)
        else:
            versions[path] = FileVersion(await sandbox.read_file(path), entry.mode)
    return versions


async def patched_versions(sandbox: Sandbox, patch: str) -> dict[str, FileVersion | None]:
    """The files in ``sandbox`` after ``patch``; None for a deleted file.

    Raises:
        PatchError: The patch does not apply.
    """
    versions = await read_versions(sandbox, await sandbox.manifest(), patched_paths(patch))
    return apply_patch(patch, versions.get)


async def apply_test_patch(sandbox: Sandbox, patch: str) -> dict[str, FileVersion | None]:
    """Apply the task's ``testPatch``. Return the changed files; None for a deleted file.

    Raises:
        VerifierFailed: The patch does not apply, which is an error of the task.
    """
    try:
        versions = await patched_versions(sandbox, patch)
        await write_versions(sandbox, versions)
    except PatchError as error:
        raise VerifierFailed(f"scoring.testPatch does not apply: {error}") from None
    return versions


class WorkspaceCopy:
    """A copy of the whole workspace inside the verifier. Use it only while trusted code runs there."""

    def __init__(self, sandbox: Sandbox, place: str) -> None:
        self._sandbox = sandbox
        self._place = place

    @classmethod
    async def save(cls, sandbox: Sandbox) -> "WorkspaceCopy":
        """Copy the workspace to a temporary directory."""
        result = await sandbox.run(_SAVE, timeout_seconds=_COPY_SECONDS)
        if result.exit_status != 0:
            raise VerifierFailed(f"the workspace could not be copied: {result.text.strip()[-500:]}")
        return cls(sandbox, result.text.rpartition("\n")[2])

    async def restore(self) -> None:
        """Restore the workspace from the copy, and delete the copy."""
        environment = {"DGYM_COPY": self._place}
        result = await self._sandbox.run(_RESTORE, environment=environment, timeout_seconds=_COPY_SECONDS)
        if result.exit_status != 0:
            raise VerifierFailed(f"the workspace could not be restored: {result.text.strip()[-500:]}")


class SavedFiles:
    """Copies of workspace files outside of the verifier, kept while the agent's code may run in the verifier."""

    def __init__(self, sandbox: Sandbox, entries: Mapping[str, ManifestEntry], archive: IO[bytes]) -> None:
        self._sandbox = sandbox
        self._entries = entries
        self._archive = archive

    @classmethod
    async def save(cls, sandbox: Sandbox, entries: Mapping[str, ManifestEntry], archive: IO[bytes]) -> "SavedFiles":
        """Copy the files that ``entries`` describe into ``archive``."""
        if entries:
            async for chunk in sandbox.get_archive(sorted(entries)):
                archive.write(chunk)
        return cls(sandbox, entries, archive)

    async def restore(self, manifest: Mapping[str, ManifestEntry]) -> list[str]:
        """Restore the files that differ from their copies, according to ``manifest``. Return their paths."""
        differing = differing_files(self._entries, manifest)
        if differing:
            obstacles = [above for path in differing for above in ancestors(path) if above in manifest]
            await self._sandbox.remove(sorted({*differing, *obstacles}))
            self._archive.seek(0)
            await self._sandbox.put_archive(_chunks(self._archive))
        return differing


class SavedOverlay:
    """A copy of the verifier's overlay outside of the verifier, kept while the agent's code may run in it.

    Build commands may write into the packages that the overlay has. Everything else is restored because it controls
    which programs run the tests and what they load: links to interpreters, scripts, metadata with entry points,
    ``.pth`` files and top-level modules.
    """

    def __init__(self, sandbox: Sandbox, entries: Mapping[str, FileStat], archive: IO[bytes]) -> None:
        self._sandbox = sandbox
        self._entries = entries
        self._archive = archive

    @classmethod
    async def save(cls, sandbox: Sandbox, archive: IO[bytes]) -> "SavedOverlay":
        """Copy the files of the overlay into ``archive``. Without an overlay nothing is copied."""
        entries = await _overlay_files(sandbox)
        files = [path for path, entry in entries.items() if entry.type == "file"]
        if files:
            async for chunk in sandbox.get_archive(files, path=sandbox.overlay):
                archive.write(chunk)
        return cls(sandbox, entries, archive)

    async def restore(self, protection: Protection) -> list[str]:
        """Remove files that the build must not add and restore those that it must not change. Return the removed hooks.

        A rebuild under another version writes new metadata of the project, which do not count as a hook.

        Raises:
            OSError: The overlay cannot be restored: there are too many files, or a link to an interpreter was changed.
        """
        if not self._entries:
            return []
        after = await _overlay_files(self._sandbox)
        before, links = self._entries, [path for path, entry in self._entries.items() if entry.type == "symlink"]
        packages = {_package(path) for path in before} - {""}

        def may_differ(path: str) -> bool:
            inside = path.partition("/site-packages/")[2]
            return _package(path) in packages and protection.why_dropped(inside) in (None, ADDED_TESTS)

        changed = [path for path in links if path not in after or after[path].target != before[path].target]
        if changed:
            raise OSError(errno.EPERM, f"links of the environment had been changed: {', '.join(sorted(changed)[:5])}")
        new = sorted(path for path in after if path not in before and not may_differ(path))
        restored = [path for path in before if path not in links and not may_differ(path)]
        await self._sandbox.remove([f"{self._sandbox.overlay}/{path}" for path in (*new, *restored)])
        self._archive.seek(0)
        with tarfile.open(fileobj=self._archive) as archive, tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as part:
            wanted = set(restored)
            with tarfile.open(fileobj=part, mode="w") as copy:
                for member in archive:
                    if member.name in wanted:
                        copy.addfile(member, archive.extractfile(member))
            part.seek(0)
            await self._sandbox.put_archive(_chunks(part), path=self._sandbox.overlay)
        projects = {project for path in before if (project := _project(path))}
        return [path for path in new if _project(path) not in projects and not path.endswith(".pyc")]


def _project(path: str) -> str:
    """The name of the distribution to whose metadata or editable hook ``path`` belongs; "" for other paths."""
    inside = path.partition("/site-packages/")[2]
    if inside.startswith("__editable__"):
        return re.split(r"[-_.]\d", inside.lstrip("_").removeprefix("editable").lstrip("_."))[0]
    top = inside.partition("/")[0]
    return top.partition("-")[0] if top.endswith(".dist-info") else ""


async def _overlay_files(sandbox: Sandbox) -> dict[str, FileStat]:
    if not sandbox.overlay:
        return {}
    entries = await sandbox.list_directory(sandbox.overlay, depth=_OVERLAY_DEPTH, limit=_OVERLAY_FILES)
    if len(entries) >= _OVERLAY_FILES:
        raise OSError(errno.E2BIG, f"the environment has more than {_OVERLAY_FILES:,} files")
    return {entry.path: entry for entry in entries if entry.type != "directory"}


def _package(path: str) -> str:
    """The directory in ``site-packages`` that contains ``path``; "" if ``path`` is not in a directory of it."""
    package, slash, _ = path.partition("/site-packages/")[2].partition("/")
    return package if slash and package != "__pycache__" else ""


def differing_files(entries: Mapping[str, ManifestEntry], manifest: Mapping[str, ManifestEntry]) -> list[str]:
    """The sorted paths whose entry in ``manifest`` differs from ``entries``."""
    return sorted(path for path, entry in entries.items() if not _same(entry, manifest.get(path)))


async def differing_versions(
    sandbox: Sandbox, manifest: Mapping[str, ManifestEntry], versions: Mapping[str, FileVersion | None]
) -> list[str]:
    """The sorted paths whose contents in ``sandbox`` differ from ``versions``."""
    return sorted([path for path, version in versions.items() if not await _has(sandbox, manifest, path, version)])


async def _has(sandbox: Sandbox, manifest: Mapping[str, ManifestEntry], path: str, version: FileVersion | None) -> bool:
    entry = manifest.get(path)
    if version is None:
        return entry is None
    if entry is None:
        # Manifests leave out caches.
        try:
            return await sandbox.read_file(path, limit=len(version.data)) == version.data
        except OSError:
            return False
    if version.is_symlink:
        return entry.type == "symlink" and entry.target.encode("utf-8", "surrogateescape") == version.data
    return entry.type == "file" and entry.sha256 == hashlib.sha256(version.data).hexdigest()


def _same(before: ManifestEntry, after: ManifestEntry | None) -> bool:
    return after is not None and (before.type, before.sha256, before.target, before.mode) == (
        after.type,
        after.sha256,
        after.target,
        after.mode,
    )


def _tar(versions: Mapping[str, FileVersion]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for path in sorted(versions):
            version = versions[path]
            member = tarfile.TarInfo(path)  # Without a date the time of extraction is used.
            if version.is_symlink:
                member.type = tarfile.SYMTYPE
                member.linkname = version.data.decode("utf-8", "surrogateescape")
                archive.addfile(member)
                continue
            member.size = len(version.data)
            member.mode = version.mode & _PERMISSIONS
            archive.addfile(member, io.BytesIO(version.data))
    buffer.seek(0)
    return buffer


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
