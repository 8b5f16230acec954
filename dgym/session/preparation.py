"""Bring a fresh sandbox to the state an episode starts from, and remember that state.

The sandbox and the verifier go through the same steps, so that what the setup makes (compiled extensions, editable
installs) is on both sides and never part of the agent's patch.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from dgym.api import DebugTask
from dgym.errors import SetupFailed
from dgym.sandbox import ManifestEntry, Sandbox
from dgym.workspace.policy import Policy, policy_files

SETUP_TIMEOUT_SECONDS = 1800.0
_CHUNK_BYTES = 256 * 1024
_POLICY_FILE_LIMIT_BYTES = 1024**2


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The workspace before the agent's first action: its manifest after setup, and the rules read from it."""

    manifest: dict[str, ManifestEntry]
    policy: Policy


async def prepare(sandbox: Sandbox, task: DebugTask, source: Path | None) -> Baseline:
    """Unpack ``source`` (None: the image holds the repository), read the policy, run the setup.

    Raises:
        SetupFailed: A setup command failed; the message has its last lines.
    """
    if source is not None:
        await sandbox.put_archive(_chunks(source))
    manifest = await sandbox.manifest()
    policy = await read_policy(sandbox, task, manifest)
    if task.spec.setup_commands:
        await run_setup(sandbox, task)
        manifest = await sandbox.manifest()
    return Baseline(manifest=manifest, policy=policy)


async def read_policy(sandbox: Sandbox, task: DebugTask, manifest: dict[str, ManifestEntry]) -> Policy:
    """The rules of the task and of the repository's own policy files, as they are before anything ran."""
    texts = {}
    for path in policy_files(manifest):
        if manifest[path].type == "file":
            data = await sandbox.read_file(path, limit=_POLICY_FILE_LIMIT_BYTES)
            texts[path] = data.decode("utf-8", "replace")
    return Policy.parse(texts, ignore=task.spec.ignore_patterns, read_only=task.spec.read_only_patterns)


async def run_setup(sandbox: Sandbox, task: DebugTask) -> None:
    """Run the task's setup commands in order; the first failure ends them."""
    for command in task.spec.setup_commands:
        result = await sandbox.run(command, timeout_seconds=SETUP_TIMEOUT_SECONDS)
        if result.exit_status != 0:
            tail = "\n".join(result.text.strip().splitlines()[-20:])
            raise SetupFailed(
                f"setup command {command!r} ended by {result.ended_by} with status {result.exit_status}:\n{tail}"
            )


async def _chunks(source: Path) -> AsyncIterator[bytes]:
    with source.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
