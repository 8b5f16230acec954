"""Sandboxes, in which untrusted programs run: their protocol, the client of the runner, and the task's entrypoint.

:mod:`dgym.sandbox.local` starts sandboxes under bubblewrap or as plain processes. :mod:`dgym.sandbox.container` starts
them in docker or podman containers. In a pod, the sidecar connects to the runner with ``RunnerClient``.
"""

from typing import TYPE_CHECKING

from dgym.lazy import lazy_names
from dgym.sandbox._entrypoint import (
    FAILED,
    PASSED,
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
from dgym.sandbox._protocol import (
    DebugRequest,
    DebugResult,
    EngineName,
    FileStat,
    FileType,
    ManifestEntry,
    RunResult,
    Sandbox,
    SandboxKind,
    SandboxLimits,
    SandboxProvider,
    SandboxSpec,
    WorkspaceDigest,
    without_escapes,
)

if TYPE_CHECKING:
    from dgym.sandbox._cache import cache_directory
    from dgym.sandbox._client import RunnerClient, RunnerInfo

__all__ = [
    "FAILED",
    "PASSED",
    "Cause",
    "DebugRequest",
    "DebugResult",
    "EngineName",
    "EntrypointResult",
    "EvaluationScript",
    "FileStat",
    "FileType",
    "ManifestEntry",
    "Mode",
    "RunResult",
    "RunnerClient",
    "RunnerInfo",
    "Sandbox",
    "SandboxKind",
    "SandboxLimits",
    "SandboxProvider",
    "SandboxSpec",
    "TestReport",
    "WorkspaceDigest",
    "cache_directory",
    "choose_mode",
    "mentions_pytest",
    "parse_report",
    "run_entrypoint",
    "without_escapes",
]

# Imported lazily: most modules use only the types of the protocol, and the client imports asyncio.
_LAZY = {"dgym.sandbox._cache": ("cache_directory",), "dgym.sandbox._client": ("RunnerClient", "RunnerInfo")}
__getattr__ = lazy_names(__name__, _LAZY)
