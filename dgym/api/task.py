"""DebugTask: one bug in one Python repository, and what counts as repaired. Any number of episodes may use it."""

from typing import Annotated, Literal

import msgspec

from dgym.api.fields import (
    API_VERSION,
    AbsolutePath,
    CommandSeconds,
    LargeText,
    Line,
    Model,
    Name,
    Quantities,
    RelativePath,
    Sha256,
    Text,
    Url,
    VariableName,
)
from dgym.api.meta import ObjectMeta

Commands = Annotated[tuple[Text, ...], msgspec.Meta(max_length=64)]
Patterns = Annotated[tuple[Line, ...], msgspec.Meta(max_length=256)]
TestIds = Annotated[tuple[Line, ...], msgspec.Meta(max_length=20_000)]

DEFAULT_ENTRYPOINT = "python -m pytest -q"


class InlineFile(Model, frozen=True, kw_only=True):
    """A file written in the manifest: exactly one of ``content`` (text) and ``content_base64`` (any bytes)."""

    path: RelativePath
    content: LargeText | None = None
    content_base64: LargeText | None = None
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)] = 0o644

    def data(self) -> bytes:
        """The file's bytes."""
        if self.content_base64 is None:
            return (self.content or "").encode()
        import base64

        return base64.b64decode(self.content_base64)


InlineFiles = Annotated[tuple[InlineFile, ...], msgspec.Meta(max_length=1024)]


class KeyToPath(Model, frozen=True, kw_only=True):
    """Where one key of a ConfigMap goes; keys cannot hold a slash, paths can."""

    key: Line
    path: RelativePath


class ConfigMapSource(Model, frozen=True, kw_only=True):
    """Files in a ConfigMap of the same namespace; without ``items`` every key is a file at the root."""

    name: Name
    items: Annotated[tuple[KeyToPath, ...], msgspec.Meta(max_length=1024)] = ()


class GitSource(Model, frozen=True, kw_only=True):
    """A commit of a git repository; ``revision`` should be a full commit id, so that the task never changes."""

    url: Url
    revision: Line


class ArchiveSource(Model, frozen=True, kw_only=True):
    """A tar or zip archive, checked against its SHA-256."""

    url: Url
    sha256: Sha256


class SourceSpec(Model, frozen=True, kw_only=True):
    """Where the repository comes from: at most one of these. With none the image already holds it.

    ``local_path`` works in local runs only and is relative to its manifest.
    """

    files: InlineFiles = ()
    config_map_ref: ConfigMapSource | None = None
    git: GitSource | None = None
    archive: ArchiveSource | None = None
    local_path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None = None


class EnvVar(Model, frozen=True, kw_only=True):
    """A variable of the environment every command runs in."""

    name: VariableName
    value: Text = ""


class Scoring(Model, frozen=True, kw_only=True):
    """What counts. Without named tests it is the whole suite as collected on the untouched repository.

    ``parser`` says how the entrypoint's result is read: ``pytest`` by a plugin, ``exitStatus`` by its status, ``auto``
    by what the entrypoint is. ``hidden_files`` and ``test_patch`` reach the verifier only, never the agent.
    """

    fail_to_pass: TestIds = ()
    pass_to_pass: TestIds = ()
    hidden_files: InlineFiles = ()
    test_patch: LargeText | None = None
    parser: Literal["auto", "pytest", "exitStatus"] = "auto"
    stop_when_eval_passes: bool = False


class Resources(Model, frozen=True, kw_only=True):
    """Requests and limits of the sandbox, as of a container."""

    requests: Quantities = msgspec.field(default_factory=dict)
    limits: Quantities = msgspec.field(default_factory=dict)


class DebugTaskSpec(Model, frozen=True, kw_only=True):
    """The task itself; also what an Episode holds inline.

    ``image`` (default: the release's own) holds the interpreter and, without a source, the repository.
    ``interpreter`` runs the injected runner. ``requirements`` are installed beforehand in local runs; an image has
    them. ``setup_commands`` run once at reset, ``build_commands`` before the tests at scoring. ``activate`` is a shell
    line whose resulting environment every command and the debugger run in. ``entrypoint`` runs the tests,
    ``debug_entrypoint`` (default: the entrypoint) is what pdb starts. ``ignore_patterns`` and ``read_only_patterns``
    add to the repository's ``.debugignore`` and ``.debugreadonly``. ``solution`` is the gold patch, never shown to a
    model. ``pod_template`` names one of the cluster's pod manifests.
    """

    image: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None
    interpreter: Line = "python3"
    working_directory: AbsolutePath = "/workspace"
    source: SourceSpec | None = None
    requirements: Annotated[tuple[Line, ...], msgspec.Meta(max_length=256)] = ()
    setup_commands: Commands = ()
    activate: Text | None = None
    entrypoint: Line = DEFAULT_ENTRYPOINT
    debug_entrypoint: Line | None = None
    entrypoint_timeout_seconds: CommandSeconds = 300
    instructions: Text = ""
    ignore_patterns: Patterns = ()
    read_only_patterns: Patterns = ()
    build_commands: Commands = ()
    env: Annotated[tuple[EnvVar, ...], msgspec.Meta(max_length=256)] = ()
    scoring: Scoring = Scoring()
    solution: LargeText | None = None
    pod_template: Name | None = None
    resources: Resources = Resources()


class DebugTask(Model, frozen=True, kw_only=True, omit_defaults=False):
    """A named, immutable task."""

    api_version: Literal["dgym.dev/v1alpha1"] = API_VERSION
    kind: Literal["DebugTask"] = "DebugTask"
    metadata: ObjectMeta
    spec: DebugTaskSpec
