"""DebugTask: one bug in one Python repository, and what counts as repaired. Any number of episodes may use it."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from dgym.api.fields import (
    API_VERSION,
    AbsolutePath,
    CommandSeconds,
    Conditions,
    LargeText,
    Line,
    Model,
    Name,
    ObjectMeta,
    Quantities,
    RelativePath,
    Sha256,
    TestId,
    Text,
    Url,
    VariableName,
)

Commands = Annotated[tuple[Text, ...], msgspec.Meta(max_length=64)]
Patterns = Annotated[tuple[Line, ...], msgspec.Meta(max_length=256)]
TestIds = Annotated[tuple[TestId, ...], msgspec.Meta(max_length=20_000)]
TestName = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
TestNames = Annotated[tuple[TestName, ...], msgspec.Meta(max_length=20_000)]
TextOutcome = Literal["PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"]
Parser = Literal["pytest", "pytestOptions", "pytestV2", "django", "seaborn", "sympy", "matplotlib", "code"]

_VERSION = r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._ -]*\])?==[A-Za-z0-9.!+_]+"
_NO_OPTION = r"([^-]|-[^-])*"
Requirement = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=4096,
        pattern=rf"^({_NO_OPTION}-?|[^@]+@ ?[^ ]+|{_VERSION}( ?;{_NO_OPTION})?( --hash=sha256:[0-9a-f]{{64}})+)$",
        description="a requirement such as 'numpy>=1.26', or an exact version with its hashes, such as"
        " 'numpy==1.26.4 --hash=sha256:' followed by 64 digits from 0 to f",
    ),
]
Requirements = Annotated[tuple[Requirement, ...], msgspec.Meta(max_length=256)]
PythonVersion = Annotated[
    str,
    msgspec.Meta(max_length=16, pattern=r"^3\.[0-9]+(\.[0-9]+)?$", description="a version in quotes, such as '3.11'"),
]
DebianPackage = Annotated[
    str,
    msgspec.Meta(
        max_length=128,
        pattern=r"^[a-z0-9][a-z0-9+.-]*$",
        description="the name of a Debian package, such as libxml2-dev",
    ),
]
ExtraName = Annotated[
    str,
    msgspec.Meta(
        max_length=128,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
        description="the name of an extra or a dependency group, such as test",
    ),
]

DEFAULT_ENTRYPOINT = "python -m pytest -q"


class InlineFile(Model, frozen=True, kw_only=True):
    """A file written in the manifest: exactly one of ``content`` and ``contentBase64``.

    Attributes:
        path: Where it goes, relative to the root of the repository.
        content: The file's text.
        content_base64: The file's bytes in base64, for files that are not UTF-8 text.
        mode: Permission bits as a number: 420 is 0644, 493 is 0755.
    """

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
    """Where one key of a ConfigMap goes; keys cannot hold a slash, paths can.

    Attributes:
        key: A key of the ConfigMap.
        path: Where its value goes, relative to the root of the repository.
    """

    key: Line
    path: RelativePath


class ConfigMapSource(Model, frozen=True, kw_only=True):
    """Files in a ConfigMap of the same namespace; without ``items`` every key is a file at the root.

    Attributes:
        name: Name of the ConfigMap.
        items: Which keys become which files; empty: every key, under its own name.
    """

    name: Name
    items: Annotated[tuple[KeyToPath, ...], msgspec.Meta(max_length=1024)] = ()


class GitSource(Model, frozen=True, kw_only=True):
    """A commit of a git repository.

    Attributes:
        url: Address of the repository, on a host that the agents are allowed to fetch from.
        revision: Should be a full commit id, so that the task never changes.
    """

    url: Url
    revision: Line


class ArchiveSource(Model, frozen=True, kw_only=True):
    """A tar or zip archive, checked against its SHA-256.

    Attributes:
        url: Address of the archive, on a host that the agents are allowed to fetch from.
        sha256: SHA-256 of the archive, in lower-case hexadecimal digits.
    """

    url: Url
    sha256: Sha256


class SourceSpec(Model, frozen=True, kw_only=True):
    """Where the repository comes from: at most one of these. With none the image already holds it.

    Attributes:
        files: The files themselves, together with ``scoring.hiddenFiles`` at most 200 KiB.
        config_map_ref: Files in a ConfigMap.
        git: A commit of a git repository.
        archive: A tar or zip archive.
        local_path: A directory, relative to the manifest. In local runs only.
    """

    files: InlineFiles = ()
    config_map_ref: ConfigMapSource | None = None
    git: GitSource | None = None
    archive: ArchiveSource | None = None
    local_path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None = None


class EnvVar(Model, frozen=True, kw_only=True):
    """A variable of the environment every command runs in.

    Attributes:
        name: Name of the variable.
        value: Its value, taken literally.
    """

    name: VariableName
    value: Text = ""


class Evaluation(Model, frozen=True, kw_only=True):
    """A script that runs the tests, and how the text it prints is read. Both happen in the verifier only.

    Text is weaker evidence than pytest's plugin: code under test can print it. The result says that it was read.

    Attributes:
        script: The script, for bash. The agent never sees it.
        parser: How the text is read: by a parser of this release, or by ``parserCode``.
        parser_code: Python that defines ``parse(log)``, which returns a dict of tests and their outcomes (PASSED,
            FAILED, SKIPPED, ERROR or XFAIL). It runs as a process of its own in the verifier.
        rule: ``passAndFail`` counts what is not in the text as failed, ``failOnly`` as passed; ``exact`` counts
            the tests of ``outcomes`` whose outcome is the one given there, and no others may be in the text.
        fail_to_pass: Tests that fail before the bug is repaired, and have to pass, as the parser names them.
        pass_to_pass: Tests that pass already, and have to keep passing, as the parser names them.
        outcomes: With the rule ``exact``: every test and its outcome.
    """

    script: LargeText
    parser: Parser = "pytest"
    parser_code: Text | None = None
    rule: Literal["passAndFail", "failOnly", "exact"] = "passAndFail"
    fail_to_pass: TestNames = ()
    pass_to_pass: TestNames = ()
    outcomes: Annotated[dict[TestName, TextOutcome], msgspec.Meta(max_length=20_000)] = msgspec.field(
        default_factory=dict
    )


class Scoring(Model, frozen=True, kw_only=True):
    """What counts. Without named tests it is the whole suite as collected on the untouched repository.

    Attributes:
        fail_to_pass: Tests that fail before the bug is repaired, and have to pass.
        pass_to_pass: Tests that pass already, and have to keep passing.
        hidden_files: Files, such as tests, that are added for scoring only; the agent never sees them.
        test_patch: A patch, in the format of git diff, that is applied for scoring only; the agent never sees it.
        parser: How the entrypoint's result is read: ``pytest`` by a plugin, ``exitStatus`` by its exit status alone,
            ``auto`` by what the entrypoint is.
        stop_when_eval_passes: End the episode as soon as the agent's own eval passes every test.
        require_clean: An episode whose label of integrity is not clean is Unresolved, with a score of 0.
        evaluation: A script whose text is read, in place of the entrypoint, ``failToPass`` and ``passToPass``. The
            entrypoint is then what the agent's own eval and pdb run.
    """

    fail_to_pass: TestIds = ()
    pass_to_pass: TestIds = ()
    hidden_files: InlineFiles = ()
    test_patch: LargeText | None = None
    parser: Literal["auto", "pytest", "exitStatus"] = "auto"
    stop_when_eval_passes: bool = False
    require_clean: bool = False
    evaluation: Evaluation | None = None


class Resources(Model, frozen=True, kw_only=True):
    """Requests and limits of the sandbox, as of a container.

    Attributes:
        requests: What the sandbox is given at least, such as cpu and memory.
        limits: What the sandbox may use at most.
    """

    requests: Quantities = msgspec.field(default_factory=dict)
    limits: Quantities = msgspec.field(default_factory=dict)


def split_hashes(requirement: str) -> tuple[str, frozenset[str]]:
    """A requirement without its hashes, and these: the SHA-256 digests of the wheels that may be installed."""
    plain, *hashes = requirement.split(" --hash=sha256:")
    return plain, frozenset(hashes)


def without_hashes(requirements: Sequence[str]) -> list[int]:
    """The positions of requirements without hashes in a list where others have them."""
    missing = [index for index, requirement in enumerate(requirements) if not split_hashes(requirement)[1]]
    return missing if len(missing) < len(requirements) else []


class Environment(Model, frozen=True, kw_only=True):
    """The Python environment of the task's programs. A local run makes it; ``dgym image build`` makes an image with it.

    Attributes:
        python: Version of Python, such as "3.9". Without it, the version that runs dgym.
        requirements: Requirements for pip. If one has hashes of its wheels (``name==1.2 --hash=sha256:DIGEST``), all
            need them.
        system_packages: Debian packages of the image, such as libxml2. A local run does not install them.
        install: Whether the repository itself is installed: "editable" as by ``pip install -e``, or "none". Without it,
            editable if the repository has a build system (a ``pyproject.toml`` with ``build-system`` or ``project``, or
            a ``setup.py``).
        extras: Extras of the repository's own package whose dependencies are installed, such as test.
        groups: Dependency groups of ``pyproject.toml`` (PEP 735) that are installed, such as dev.
    """

    python: PythonVersion | None = None
    requirements: Requirements = ()
    system_packages: Annotated[tuple[DebianPackage, ...], msgspec.Meta(max_length=256)] = ()
    install: Literal["editable", "none"] | None = None
    extras: Annotated[tuple[ExtraName, ...], msgspec.Meta(max_length=64)] = ()
    groups: Annotated[tuple[ExtraName, ...], msgspec.Meta(max_length=64)] = ()


class DebugTaskSpec(Model, frozen=True, kw_only=True):
    """The task itself; also what an Episode holds inline.

    Attributes:
        image: Image of the sandbox: it holds the interpreter and what the program needs and, where there is no source,
            the repository too. Without it, the image that comes with this release.
        interpreter: The Python in the image that runs dgym's runner, 3.6 or newer.
        working_directory: Where the repository is in the sandbox.
        source: Where the repository comes from: at most one of its fields. Without it the image holds the repository.
        environment: The Python environment of the task's programs. An image has to hold it already.
        requirements: Short form of ``environment.requirements``; give one of the two.
        setup_commands: Shell commands that are run once before the agent begins, in sandbox and verifier.
        activate: A shell line, such as an activation of conda, whose resulting environment every command and the
            debugger run in.
        entrypoint: The command that runs the tests.
        debug_entrypoint: What pdb starts. Without it, the entrypoint.
        entrypoint_timeout_seconds: How long the entrypoint may run.
        instructions: What the agent is told about the task.
        ignore_patterns: What the agent cannot see, as in a .gitignore file; adds to the repository's .debugignore.
        read_only_patterns: What the agent cannot change, as in a .gitignore file; adds to the repository's
            .debugreadonly.
        build_commands: Shell commands that are run before the tests at scoring.
        env: Variables of the environment every command runs in.
        scoring: What counts. Without it, all tests that are collected on the untouched repository.
        solution: The patch that repairs the bug, in the format of git diff, for the solution agent. Never shown to a
            model.
        pod_template: Which of the cluster's pod templates makes the sandbox's pod. Without it, the operator's default.
        resources: Requests and limits of the sandbox.
    """

    image: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None
    interpreter: Line = "python3"
    working_directory: AbsolutePath = "/workspace"
    source: SourceSpec | None = None
    environment: Environment | None = None
    requirements: Requirements = ()
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

    def declared_environment(self) -> Environment:
        """``environment`` with the short form ``requirements`` filled in."""
        environment = self.environment or Environment()
        return msgspec.structs.replace(environment, requirements=self.requirements or environment.requirements)

    def image_problem(self) -> str | None:
        """Why the task cannot run in a container: it needs an environment and names no image. None if it can."""
        environment = self.declared_environment()
        wanted = {
            "requirements": tuple(split_hashes(each)[0] for each in environment.requirements if each != "pytest"),
            "systemPackages": environment.system_packages,
            "extras": environment.extras,
            "groups": environment.groups,
            "install": ("editable",) if environment.install == "editable" else (),
            "python": (environment.python,) if environment.python else (),
        }
        named = [f"{field} ({', '.join(values)})" for field, values in wanted.items() if values]
        if self.image is not None or not named:
            return None
        field = "requirements" if self.requirements else "environment"
        return (
            f"{field}: the task has {', '.join(named)} but no image, and nothing is installed in a container; build an "
            "image with dgym image build and name it in image, or submit the task with dgym submit --registry"
        )


class DebugTaskStatus(Model, frozen=True, kw_only=True):
    """What was observed of a task.

    Attributes:
        conditions: Healthy, once ``dgym benchmark health --cluster`` has run the task: True with the reason Healthy, or
            False with the reason Flaky (equal runs differ) or Broken (the solution fails, the untouched repository
            passes, or it cannot run), or Unknown with the reason NotChecked (its runs failed for other reasons).
    """

    conditions: Conditions = ()


class DebugTask(Model, frozen=True, kw_only=True, omit_defaults=False):
    """One bug in one Python repository, and what counts as repaired. Any number of episodes may use it.

    Attributes:
        spec: The task. It never changes: make a new DebugTask under another name instead.
        status: What was observed.
    """

    api_version: Literal["dgym.dev/v1alpha1"] = API_VERSION
    kind: Literal["DebugTask"] = "DebugTask"
    metadata: ObjectMeta
    spec: DebugTaskSpec
    status: DebugTaskStatus = DebugTaskStatus()
