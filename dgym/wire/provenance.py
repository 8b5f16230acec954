"""What is needed to repeat a run: recorded in ``result.json`` and in the header of a trajectory."""

from typing import Any

import msgspec

MOST_DISTRIBUTIONS = 1_000
"""Distributions that are listed; the digest covers all."""


class ReportedBySandbox(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the untrusted sandbox reported before the first step; its programs can report anything.

    ``interpreter`` is the version of Python. ``distributions`` are the installed ones: their versions by name;
    ``distributions_digest`` is the SHA-256 over all of them, and ``left_out`` the number of those that are not listed.
    """

    interpreter: str = ""
    distributions: dict[str, str] = msgspec.field(default_factory=dict)
    distributions_digest: str = ""
    left_out: int = 0


class RunEnvironment(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the programs of the task run.

    ``sandbox`` is the effective kind: bubblewrap, none, container or pod. ``image`` is the digest of the container's
    image; "" if there is none, or in a pod, whose image only the operator sees.
    """

    sandbox: str = ""
    image: str = ""
    reported_by_sandbox: ReportedBySandbox | None = None


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model as it was asked.

    ``requested`` is the model's name in requests, ``sampling`` the other fields of the request as they are sent,
    ``prices`` the table of ``llm.yaml``. ``served`` and ``system_fingerprints`` are what the server reported; in the
    header of a trajectory they are empty, because each exchange has them. API keys, headers and values of environment
    variables are left out.
    """

    requested: str = ""
    sampling: dict[str, Any] = msgspec.field(default_factory=dict)
    prices: dict[str, str] = msgspec.field(default_factory=dict)
    served: tuple[str, ...] = ()
    system_fingerprints: tuple[str, ...] = ()


class Provenance(RunEnvironment, frozen=True, kw_only=True, rename="camel"):
    """What ran, and with what.

    ``dgym_commit`` is empty where the installation does not name one. ``parameters`` are those of the agent; a long one
    is replaced by its digest. ``prompts`` are digests of the templates of the prompts. ``model`` is None for agents
    without one.
    """

    dgym_version: str = ""
    dgym_commit: str = ""
    task_digest: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    prompts: dict[str, str] = msgspec.field(default_factory=dict)
    model: ModelRecord | None = None
