"""The environment of a task's programs, as the sandbox reports it before the agent's first step."""

import hashlib

import msgspec

from dgym.decoding import DECODE_ERRORS
from dgym.errors import SandboxLost
from dgym.sandbox import Sandbox
from dgym.wire.provenance import MOST_DISTRIBUTIONS, ReportedBySandbox, RunEnvironment

_SECONDS = 30.0
_LIMIT_BYTES = 1024**2
_NAME_CHARACTERS = 100
_VERSION_CHARACTERS = 64
_COMMAND = '"$(command -v python || command -v python3)" -B -'
_PROGRAM = b"""\
import sys
sys.path = [path for path in sys.path if path]  # The repository's own modules come first else.
import json
import platform
found = []
try:
    from importlib import metadata
    for one in metadata.distributions():
        try:
            found.append([str(one.metadata["Name"]), str(one.version)])
        except Exception:
            pass
except ImportError:  # Before Python 3.8.
    pass
name = platform.python_implementation()
version = platform.python_version()
print(json.dumps({"interpreter": version if name == "CPython" else name + " " + version, "distributions": found}))
"""


class _Report(msgspec.Struct, frozen=True):
    interpreter: str
    distributions: list[tuple[str, str]]


async def read_environment(sandbox: Sandbox) -> RunEnvironment:
    """The sandbox's kind and image, and what its Python reports; that part is None where it reports nothing valid."""
    try:
        result = await sandbox.run(_COMMAND, stdin=_PROGRAM, timeout_seconds=_SECONDS, output_limit=_LIMIT_BYTES)
        reported = read_report(result.output)
    except (SandboxLost, OSError):
        reported = None
    return RunEnvironment(sandbox=sandbox.kind, image=sandbox.image, reported_by_sandbox=reported)


def read_report(output: bytes) -> ReportedBySandbox | None:
    """The report in the last line of ``output``, within bounds; None if it is not valid."""
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
