"""A task's sandbox: its specification, its state before the agent's first action, and the gold patch.

The sandbox and the verifier go through the same steps, so that what the setup makes (compiled extensions, editable
installs) is on both sides and never part of the agent's patch.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from dgym.api import DebugTask, parse_quantity
from dgym.errors import ManifestError, PatchError, SetupFailed
from dgym.sandbox import Limits, ManifestEntry, Sandbox, SandboxSpec
from dgym.session.verification import patched_versions, write_versions
from dgym.tools import ToolSettings
from dgym.wire import Observation
from dgym.workspace import Policy, encode_path, policy_files
from dgym.workspace.patches import FileVersion, patched_paths

SETUP_TIMEOUT_SECONDS = 1800.0
_CHUNK_BYTES = 256 * 1024
_CLOCK_STEP_SECONDS = 1.05
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
printf '[user]\\n\\tname = dgym\\n\\temail = dgym@localhost\\n[gc]\\n\\tauto = 0\\n' >>.git/config &&
git -c core.compression=0 update-index --add --remove -z --stdin && git -c core.compression=0 add -A </dev/null &&
git commit -q --allow-empty --no-verify --no-gpg-sign -m 'The repository before any change' || exit 1"""
_OF_THE_DISK = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""No fault of the task or its image, as far as can be known."""
_OF_THE_USER = (errno.EACCES, errno.EPERM, errno.EROFS)


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The workspace before the agent's first action: its manifest after setup, and the rules read from it.

    ``delivered``: the files of the repository, before setup. ``built``: those that the installation of the project
    added. ``history_hidden``: a git repository in the workspace is of dgym and holds nothing but these files.
    """

    manifest: dict[str, ManifestEntry]
    policy: Policy
    delivered: frozenset[str]
    built: frozenset[str] = frozenset()
    history_hidden: bool = False


async def prepare(sandbox: Sandbox, task: DebugTask, source: Path | None) -> Baseline:
    """Unpack ``source`` (None: the image holds the repository), install it, read the policy, run the setup.

    Whatever is written afterwards is newer, in whole seconds too, than everything the setup made.

    Raises:
        SetupFailed: A setup command failed; the message has its last lines. Or there are too many files, or the image
            does not let its user write the workspace.
    """
    if source is not None:
        await _unpack(sandbox, source)
    built = frozenset(await sandbox.install_project())
    manifest = await _manifest(sandbox)
    delivered = frozenset(manifest) - built
    policy = await read_policy(sandbox, task, manifest)
    if task.spec.setup_commands:
        await run_setup(sandbox, task.spec.setup_commands)
        # A source that changes in the second in which it was built passes for built: setuptools compares whole seconds.
        manifest, _ = await asyncio.gather(_manifest(sandbox), asyncio.sleep(_CLOCK_STEP_SECONDS))
    return Baseline(manifest=manifest, policy=policy, delivered=delivered, built=built)


async def commit_workspace(sandbox: Sandbox, task: DebugTask, baseline: Baseline) -> Baseline:
    """Make a git repository with one commit of a local source, for the agent's ``git diff`` and ``git status``.

    Returns ``baseline`` as it is if the source is not local, if there is a repository already or if git is missing.
    The commit is the same each time, since a replay compares what commands print.
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
        if error.errno in _OF_THE_DISK:
            raise
        remedy = "; it must be writable for the user that the image names" if error.errno in _OF_THE_USER else ""
        what = f"the repository cannot be written into the workspace: {error.strerror or error}"
        raise SetupFailed(what + remedy) from error


async def _manifest(sandbox: Sandbox) -> dict[str, ManifestEntry]:
    try:
        return await sandbox.manifest()
    except OSError as error:
        raise SetupFailed(f"the workspace's files cannot be listed: {error.strerror or error}") from error


async def read_policy(sandbox: Sandbox, task: DebugTask, manifest: dict[str, ManifestEntry]) -> Policy:
    """The rules of the task and of the repository's own policy files, as they are before anything ran."""
    texts = {}
    for path in policy_files(manifest):
        if manifest[path].type == "file":
            data = await sandbox.read_file(path, limit=_POLICY_FILE_LIMIT_BYTES)
            texts[path] = data.decode("utf-8", "surrogateescape")
    return Policy.parse(texts, ignore=task.spec.ignore_patterns, read_only=task.spec.read_only_patterns)


async def run_setup(sandbox: Sandbox, commands: Sequence[str], *, of: str = "") -> None:
    """Run setup commands in order; the first failure ends them.

    Raises:
        SetupFailed: A command failed; the message names whose it is and has its last lines.
    """
    for command in commands:
        result = await sandbox.run(command, timeout_seconds=SETUP_TIMEOUT_SECONDS)
        if result.exit_status != 0:
            tail = "\n".join(result.text.strip().splitlines()[-20:])
            raise SetupFailed(
                f"setup command {command!r}{of} ended by {result.ended_by} with status {result.exit_status}:\n{tail}"
            )


async def _chunks(source: Path) -> AsyncIterator[bytes]:
    with source.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def sandbox_spec(task: DebugTask, python: str | None) -> SandboxSpec:
    """The specification of the task's sandboxes; ``python`` runs its programs, None: the sandbox's own interpreter."""
    spec = task.spec
    memory = spec.resources.limits.get("memory")
    return SandboxSpec(
        workspace=spec.working_directory,
        environment={variable.name: variable.value for variable in spec.env},
        activate=spec.activate,
        interpreter=spec.interpreter,
        python=python,
        limits=Limits() if memory is None else Limits(memory_bytes=int(parse_quantity(memory))),
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
    """The paths that the task's gold patch changes; none where there is no patch that can be read."""
    try:
        return tuple(patched_paths(task.spec.solution)) if task.spec.solution else ()
    except PatchError:
        return ()


async def apply_solution(sandbox: Sandbox, task: DebugTask) -> Observation:
    """Make the changes of ``spec.solution``; the observation names the files.

    Raises:
        ManifestError: The patch does not apply.
    """
    if not task.spec.solution:
        return Observation(text="the task has no solution", ok=False)
    updates = await solution_versions(sandbox, task)
    await write_versions(sandbox, updates)
    return Observation(text="applied the solution to " + ", ".join(sorted(updates)))


async def solution_versions(sandbox: Sandbox, task: DebugTask) -> dict[str, FileVersion | None]:
    """The files in ``sandbox`` after the gold patch; None: deleted.

    Raises:
        ManifestError: The patch does not apply.
    """
    try:
        return await patched_versions(sandbox, task.spec.solution or "")
    except PatchError as error:
        name = task.metadata.name
        raise ManifestError(f"task {name}: spec.solution does not apply to its source: {error}") from None
