"""A task's sandbox: its specification, its state before the first action, its environment and the gold patch."""

import asyncio
import errno
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from dgym.api import DebugTask, parse_quantity
from dgym.decoding import DECODE_ERRORS
from dgym.errors import ManifestError, PatchError, SandboxLost, SetupFailed
from dgym.sandbox import ManifestEntry, Sandbox, SandboxLimits, SandboxSpec
from dgym.session.scoring import patched_versions, write_versions
from dgym.tools import ToolSettings
from dgym.wire import Observation
from dgym.wire.outcome import MOST_DISTRIBUTIONS, ReportedBySandbox, RunEnvironment
from dgym.workspace import Policy, encode_path, policy_files
from dgym.workspace.patches import FileVersion, patched_paths

SETUP_TIMEOUT_SECONDS = 1800.0
_CHUNK_BYTES = 256 * 1024
_CLOCK_TICK_SECONDS = 0.05
"""Longer than the interval in which file systems read the clock."""
_POLICY_FILE_LIMIT_BYTES = 1024**2
_GONE = ManifestEntry(type="other")
_COMMIT_SECONDS = 60.0
_NOT_BEGUN = 9
_COMMIT = f"""\
[ -e .git ] || [ -L .git ] && exit {_NOT_BEGUN}
command -v git >/dev/null || exit {_NOT_BEGUN}
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME=/nonexistent
export GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
exec >/dev/null 2>&1
git -c init.defaultBranch=main init -q --template= &&
printf '[user]\\n\\tname = dgym\\n\\temail = dgym@localhost\\n' >>.git/config &&
printf '[gc]\\n\\tauto = 0\\n[maintenance]\\n\\tauto = false\\n' >>.git/config &&
git -c core.compression=0 update-index --add --remove -z --stdin && git -c core.compression=0 add -A </dev/null &&
git commit -q --allow-empty --no-verify --no-gpg-sign -m 'The repository before any change' || exit 1"""
_DISK_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""Errors that the task and its image probably did not cause."""
_PERMISSION_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)
_SECONDS = 30.0
_LIMIT_BYTES = 1024**2
_NAME_CHARACTERS = 100
_VERSION_CHARACTERS = 64
_COMMAND = '"$(command -v python || command -v python3)" -B -'
# importlib.metadata, json and platform would take five times as long as the rest of the program.
REPORT_PROGRAM = rb"""
import io
import os
import sys


def distribution(directory, name):
    where = os.path.join(directory, name)
    for path in (where + "/METADATA", where + "/PKG-INFO", where):
        fields = {}
        try:
            with io.open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    key, colon, value = line.partition(":")
                    if not colon and not line.strip():
                        break
                    fields.setdefault(key, value)
            return '[%s, %s]' % (quoted(fields["Name"]), quoted(fields["Version"]))
        except (OSError, KeyError):
            pass


def quoted(text):
    text = "".join(character for character in text.strip() if character >= " ")
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')


found = []
for directory in filter(None, sys.path):  # The working directory is not an environment.
    try:
        names = os.listdir(directory)
    except OSError:
        continue
    names = [name for name in names if name.endswith((".dist-info", ".egg-info")) or name == "EGG-INFO"]
    found += filter(None, [distribution(directory, name) for name in names])
name = {"cpython": "", "pypy": "PyPy "}.get(sys.implementation.name, sys.implementation.name + " ")
report = '{"interpreter": %s, "distributions": [%s]}' % (quoted(name + sys.version.split()[0]), ", ".join(found))
sys.stdout.buffer.write(report.encode() + b"\n")
"""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The workspace before the agent's first action.

    Attributes:
        manifest: The files after the setup.
        policy: The policy of the task and of the repository's policy files.
        delivered: The files of the repository, before the setup.
        built: The files that the installation of the project added.
        history_hidden: True if dgym created the git repository in the workspace, so it contains only these files.
    """

    manifest: dict[str, ManifestEntry]
    policy: Policy
    delivered: frozenset[str]
    built: frozenset[str] = frozenset()
    history_hidden: bool = False


async def prepare(sandbox: Sandbox, task: DebugTask, source: Path | None) -> Baseline:
    """Prepare a sandbox: unpack ``source``, install the project, read the policy and run the setup commands.

    Files that are written afterwards have a later modification time than all files of the setup, even in whole seconds.
    If ``source`` is None, the image has the repository.

    Raises:
        SetupFailed: A setup command failed; the message has its last lines. Or there are too many files, or the user of
            the image cannot write into the workspace.
    """
    if source is not None:
        await _unpack(sandbox, source)
    built = frozenset(await sandbox.install_project())
    manifest = await _manifest(sandbox)
    delivered = frozenset(manifest) - built
    policy = await read_policy(sandbox, task, manifest)
    if task.spec.setup_commands:
        await run_setup(sandbox, task.spec.setup_commands)
        # setuptools compares times in whole seconds: it would not rebuild a source that changes in the second of its
        # build.
        manifest, _ = await asyncio.gather(_manifest(sandbox), asyncio.sleep(_seconds_to_next_second(sandbox)))
    return Baseline(manifest=manifest, policy=policy, delivered=delivered, built=built)


def _seconds_to_next_second(sandbox: Sandbox) -> float:
    """Time until the files of the sandbox get another whole second. An engine may run containers with another clock."""
    elapsed = 0.0 if sandbox.kind == "container" else time.time() % 1
    return 1 - elapsed + _CLOCK_TICK_SECONDS


async def commit_workspace(sandbox: Sandbox, task: DebugTask, baseline: Baseline) -> Baseline:
    """Create a git repository with one commit of a local source, for the agent's ``git diff`` and ``git status``.

    Returns ``baseline`` unchanged if the source is not local, if there is a repository already or if git is missing.
    The commit is the same each time, because a replay compares what commands print.
    """
    if task.spec.source is None or task.spec.source.local_path is None:
        return baseline
    tracked = [path for path in baseline.delivered if baseline.manifest.get(path, _GONE).type in ("file", "symlink")]
    result = await sandbox.run(
        _COMMIT, stdin=b"".join(encode_path(path) + b"\0" for path in tracked), timeout_seconds=_COMMIT_SECONDS
    )
    if result.exit_status == 0:
        return msgspec.structs.replace(baseline, history_hidden=True)
    if result.exit_status != _NOT_BEGUN:
        await sandbox.run("rm -rf .git", timeout_seconds=_COMMIT_SECONDS)
    return baseline


async def _unpack(sandbox: Sandbox, source: Path) -> None:
    try:
        await sandbox.put_archive(_chunks(source))
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise
        remedy = "; the user of the image must be able to write into it" if error.errno in _PERMISSION_ERRORS else ""
        what = f"the repository cannot be written into the workspace: {error.strerror or error}"
        raise SetupFailed(what + remedy) from error


async def _manifest(sandbox: Sandbox) -> dict[str, ManifestEntry]:
    try:
        return await sandbox.manifest()
    except OSError as error:
        raise SetupFailed(f"the workspace's files cannot be listed: {error.strerror or error}") from error


async def read_policy(sandbox: Sandbox, task: DebugTask, manifest: dict[str, ManifestEntry]) -> Policy:
    """Read the rules of the task and of the repository's own policy files. Call it before any code of the task runs."""
    texts = {}
    for path in policy_files(manifest):
        if manifest[path].type == "file":
            data = await sandbox.read_file(path, limit=_POLICY_FILE_LIMIT_BYTES)
            texts[path] = data.decode("utf-8", "surrogateescape")
    return Policy.parse(texts, ignore=task.spec.ignore_patterns, read_only=task.spec.read_only_patterns)


async def run_setup(sandbox: Sandbox, commands: Sequence[str], *, origin: str = "") -> None:
    """Run setup commands in order, up to the first failure.

    Raises:
        SetupFailed: A command failed. The message has its last lines and ``origin``.
    """
    for command in commands:
        result = await sandbox.run(command, timeout_seconds=SETUP_TIMEOUT_SECONDS)
        if result.exit_status != 0:
            tail = "\n".join(result.text.strip().splitlines()[-20:])
            ending = f"ended by {result.ended_by} with status {result.exit_status}"
            raise SetupFailed(f"setup command {command!r}{origin} {ending}:\n{tail}")


async def _chunks(source: Path) -> AsyncIterator[bytes]:
    with source.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def sandbox_spec(task: DebugTask, python: str | None) -> SandboxSpec:
    """The specification of the task's sandboxes. ``python`` runs dgym's programs. None: the sandbox's interpreter."""
    spec = task.spec
    memory = spec.resources.limits.get("memory")
    return SandboxSpec(
        workspace=spec.working_directory,
        environment={variable.name: variable.value for variable in spec.env},
        activate=spec.activate,
        interpreter=spec.interpreter,
        python=python,
        limits=SandboxLimits() if memory is None else SandboxLimits(memory_bytes=int(parse_quantity(memory))),
    )


def tool_settings(task: DebugTask) -> ToolSettings:
    """The settings of the tools for ``task``."""
    spec = task.spec
    return ToolSettings(
        entrypoint=spec.entrypoint,
        debug_entrypoint=spec.debug_entrypoint,
        entrypoint_timeout_seconds=float(spec.entrypoint_timeout_seconds),
        scored_tests=spec.scoring.fail_to_pass + spec.scoring.pass_to_pass,
        parser=spec.scoring.parser,
        build_commands=spec.build_commands,
        interpreter=spec.interpreter,
    )


def solution_paths(task: DebugTask) -> tuple[str, ...]:
    """The paths that the task's gold patch changes. Empty if the patch is missing or cannot be parsed."""
    try:
        return tuple(patched_paths(task.spec.solution)) if task.spec.solution else ()
    except PatchError:
        return ()


async def apply_solution(sandbox: Sandbox, task: DebugTask) -> Observation:
    """Apply ``spec.solution`` to the workspace. The observation lists the files.

    Raises:
        ManifestError: The patch does not apply.
    """
    if not task.spec.solution:
        return Observation(text="the task has no solution", ok=False)
    updates = await solution_versions(sandbox, task)
    await write_versions(sandbox, updates)
    return Observation(text="applied the solution to " + ", ".join(sorted(updates)))


async def solution_versions(sandbox: Sandbox, task: DebugTask) -> dict[str, FileVersion | None]:
    """The files in ``sandbox`` after the gold patch; None for a deleted file.

    Raises:
        ManifestError: The patch does not apply.
    """
    try:
        return await patched_versions(sandbox, task.spec.solution or "")
    except PatchError as error:
        name = task.metadata.name
        raise ManifestError(f"task {name}: spec.solution does not apply to its source: {error}") from None


class _Report(msgspec.Struct, frozen=True):
    interpreter: str
    distributions: list[tuple[str, str]]


async def read_environment(sandbox: Sandbox) -> RunEnvironment:
    """The sandbox's kind and image, and the report of its Python. The report is None if it is missing or invalid."""
    try:
        result = await sandbox.run(_COMMAND, stdin=REPORT_PROGRAM, timeout_seconds=_SECONDS, output_limit=_LIMIT_BYTES)
        reported = read_report(result.output)
    except (SandboxLost, OSError):
        reported = None
    return RunEnvironment(sandbox=sandbox.kind, image=sandbox.image, reported_by_sandbox=reported)


def read_report(output: bytes) -> ReportedBySandbox | None:
    """Parse the report in the last line of ``output`` and cut it to the limits. None if it is invalid."""
    lines = output.strip().splitlines()
    try:
        report = msgspec.json.decode(lines[-1] if lines else b"", type=_Report)
    except DECODE_ERRORS:
        return None
    found: dict[str, str] = {}
    for name, version in report.distributions:
        words = name[:_NAME_CHARACTERS].lower().replace("_", "-").replace(".", "-").split("-")
        found.setdefault("-".join(word for word in words if word), version[:_VERSION_CHARACTERS])
    ordered = dict(sorted(found.items()))
    text = "".join(f"{name}=={version}\n" for name, version in ordered.items())
    return ReportedBySandbox(
        interpreter=report.interpreter[:_NAME_CHARACTERS],
        distributions=dict(list(ordered.items())[:MOST_DISTRIBUTIONS]),
        distributions_digest=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        left_out=max(0, len(ordered) - MOST_DISTRIBUTIONS),
    )
