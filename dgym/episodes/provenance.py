"""What an episode records to be repeated: versions, digests, parameters, and the model's settings without secrets."""

import functools
import hashlib
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

import dgym
from dgym.agents import Agent
from dgym.llm import Model, describe_model, mask
from dgym.wire.provenance import Provenance

_GIT_SECONDS = 10.0
_LONG_BYTES = 1_000


def begin_provenance(task_digest: str, *, image: str = "") -> Provenance:
    """What is known before an episode begins; ``image`` is the digest of the pod's image."""
    return Provenance(dgym_version=version("dgym"), dgym_commit=dgym_commit(), task_digest=task_digest, image=image)


def with_agent(
    provenance: Provenance,
    agent: type[Agent],
    parameters: Mapping[str, Any],
    *,
    base: Path | None,
    model: Model | None,
    seed: int | None,
    temperature: str | None,
) -> Provenance:
    """``provenance`` with the agent's parameters and prompts, and its model."""
    digests = getattr(agent, "prompt_digests", None)
    return msgspec.structs.replace(
        provenance,
        parameters={name: _recorded(value) for name, value in parameters.items()},
        prompts=digests(parameters, base) if digests is not None else {},
        model=describe_model(model, seed=seed, temperature=temperature) if model is not None else None,
    )


def _recorded(value: Any) -> Any:
    """A parameter without what looks like a key; a long one by its digest."""
    data = mask(msgspec.json.encode(value, order="sorted", enc_hook=repr).decode())
    if len(data) > _LONG_BYTES:
        return {"sha256": hashlib.sha256(data.encode()).hexdigest()}
    return msgspec.json.decode(data)


@functools.cache
def dgym_commit() -> str:
    """The commit that dgym was installed from, with ``-dirty`` if files of its checkout differed; empty if unknown.

    Wheels have it in ``commit.txt``, see ``hack/record_commit.py``.
    """
    package = Path(dgym.__file__).resolve().parent
    try:
        if not (package.parent / ".git").exists():
            return (package / "commit.txt").read_text("ascii").strip()
        git = ["git", "--no-optional-locks", "-C", str(package.parent)]
        describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(describe, check=True, capture_output=True, text=True, timeout=_GIT_SECONDS).stdout.strip()
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
