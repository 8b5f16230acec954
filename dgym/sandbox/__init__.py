"""Where untrusted programs run: the protocol of a sandbox, the runner's client, and running a task's entrypoint.

:mod:`dgym.sandbox.local` opens sandboxes under bubblewrap or as plain processes, :mod:`dgym.sandbox.container` in
docker or podman containers; a pod's sandbox is opened by the sidecar with ``RunnerClient`` alone.
"""

from typing import TYPE_CHECKING

from dgym.lazy import lazy_names
from dgym.sandbox.entrypoint import (
    Cause,
    EntrypointResult,
    EvaluationScript,
    Mode,
    TestReport,
    choose_mode,
    mentions_pytest,
    parse_report,
    run_entrypoint,
)
from dgym.sandbox.protocol import (
    DebugRequest,
    DebugResult,
    EngineName,
    FileStat,
    FileType,
    Limits,
    ManifestEntry,
    RunResult,
    Sandbox,
    SandboxKind,
    SandboxProvider,
    SandboxSpec,
    WorkspaceDigest,
    without_escapes,
)

if TYPE_CHECKING:
    from dgym.sandbox.client import RunnerClient, RunnerInfo

__all__ = [
    "Cause",
    "DebugRequest",
    "DebugResult",
    "EngineName",
    "EntrypointResult",
    "EvaluationScript",
    "FileStat",
    "FileType",
    "Limits",
    "ManifestEntry",
    "Mode",
    "RunResult",
    "RunnerClient",
    "RunnerInfo",
    "Sandbox",
    "SandboxKind",
    "SandboxProvider",
    "SandboxSpec",
    "TestReport",
    "WorkspaceDigest",
    "choose_mode",
    "mentions_pytest",
    "parse_report",
    "run_entrypoint",
    "without_escapes",
]

# The runner's client needs asyncio, which most users of the protocol's nouns do not.
__getattr__ = lazy_names(__name__, {"dgym.sandbox.client": ("RunnerClient", "RunnerInfo")})
