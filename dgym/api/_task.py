"""DebugTask: a bug in a Python repository and the tests that its repair must pass.

Several episodes can use one task.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from dgym.api._fields import (
    API_VERSION,
    AbsolutePath,
    CommandSeconds,
    Conditions,
    LargeText,
    Line,
    ManifestStruct,
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


class InlineFile(ManifestStruct, frozen=True, kw_only=True):
    """A file with its content in the manifest. Exactly one of ``content`` and ``contentBase64`` is required.

    Attributes:
        path: Path of the file, relative to the root of the repository.
        content: Text of the file.
        content_base64: Bytes of the file in base64, for files that are not UTF-8 text.
        mode: Permission bits as a decimal number: 420 is 0644, 493 is 0755.
    """

    path: RelativePath
    content: LargeText | None = None
    content_base64: LargeText | None = None
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)] = 0o644

    def data(self) -> bytes:
        """Return the bytes of the file."""
        if self.content_base64 is None:
            return (self.content or "").encode()
        import base64

        return base64.b64decode(self.content_base64)


InlineFiles = Annotated[tuple[InlineFile, ...], msgspec.Meta(max_length=1024)]


class KeyToPath(ManifestStruct, frozen=True, kw_only=True):
    """The file that a key of a ConfigMap becomes. Paths can contain slashes, keys cannot.

    Attributes:
        key: Key of the ConfigMap.
        path: Path of the file, relative to the root of the repository.
    """

    key: Line
    path: RelativePath


class ConfigMapSource(ManifestStruct, frozen=True, kw_only=True):
    """Files from a ConfigMap of the same namespace.

    Attributes:
        name: Name of the ConfigMap.
        items: The keys that become files, and the paths of these files. If empty, every key becomes a file at the root
            of the repository, named like the key.
    """

    name: Name
    items: Annotated[tuple[KeyToPath, ...], msgspec.Meta(max_length=1024)] = ()


class GitSource(ManifestStruct, frozen=True, kw_only=True):
    """A commit of a git repository.

    Attributes:
        url: URL of the repository, on a host that the agent pods are allowed to fetch from.
        revision: Revision of the repository. Use a full commit id, so that the task never changes.
    """

    url: Url
    revision: Line


class ArchiveSource(ManifestStruct, frozen=True, kw_only=True):
    """A tar or zip archive, checked against its SHA-256.

    Attributes:
        url: URL of the archive, on a host that the agent pods are allowed to fetch from.
        sha256: SHA-256 of the archive, in lower-case hexadecimal digits.
    """

    url: Url
    sha256: Sha256


class SourceSpec(ManifestStruct, frozen=True, kw_only=True):
    """Source of the repository.

    At most one field can be given. Without a source, the image must contain the repository.

    Attributes:
        files: The files of the repository. Together with ``scoring.hiddenFiles`` they have at most 200 KiB.
        config_map_ref: Files from a ConfigMap.
        git: A commit of a git repository.
        archive: A tar or zip archive.
        local_path: A directory, relative to the manifest. Only for local runs.
    """

    files: InlineFiles = ()
    config_map_ref: ConfigMapSource | None = None
    git: GitSource | None = None
    archive: ArchiveSource | None = None
    local_path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None = None


class EnvVar(ManifestStruct, frozen=True, kw_only=True):
    """An environment variable.

    Attributes:
        name: Name of the variable.
        value: Value of the variable. It is used literally, without expansion.
    """

    name: VariableName
    value: Text = ""


class Evaluation(ManifestStruct, frozen=True, kw_only=True):
    """A script that runs the tests, and the parser that reads the script's output. Both run only in the verifier.

    Output is weaker evidence than the report of dgym's pytest plugin, because the tested code can print the same text.
    The result notes that it is based on output.

    Attributes:
        script: Script for bash. The agent cannot see it.
        parser: Parser of the output: a parser of this release, or ``code`` for ``parserCode``.
        parser_code: Python code that defines ``parse(log)``, which returns a dict of tests and their outcomes (PASSED,
            FAILED, SKIPPED, ERROR or XFAIL). It runs in a separate process in the verifier.
        rule: With ``passAndFail`` a test that is not in the output has failed, with ``failOnly`` it has passed. With
            ``exact`` each test of ``outcomes`` must have the outcome given there, and the output must not contain other
            tests.
        fail_to_pass: Tests that fail before the repair and must pass after it. The names are those of the parser.
        pass_to_pass: Tests that pass before the repair and must still pass after it. The names are those of the parser.
        outcomes: All tests and their required outcomes, for the rule ``exact``.
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


class Scoring(ManifestStruct, frozen=True, kw_only=True):
    """How an episode is scored.

    Without named tests, all tests that are collected on the untouched repository must pass.

    Attributes:
        fail_to_pass: Tests that fail before the repair and must pass after it.
        pass_to_pass: Tests that pass before the repair and must still pass after it.
        hidden_files: Files, such as tests, that are added only for scoring. The agent cannot see them.
        test_patch: A patch in the format of git diff that is applied only for scoring. The agent cannot see it.
        parser: How the result of the entrypoint is read: ``pytest`` uses dgym's pytest plugin, ``exitStatus`` only the
            exit status. ``auto`` uses the plugin if tests are named or the entrypoint runs pytest, else the exit
            status.
        stop_when_eval_passes: End the episode as soon as every test passes in an ``eval`` of the agent.
        require_clean: If the integrity of an episode is not clean, the episode is Unresolved with a score of 0.
        evaluation: A script for scoring whose output is parsed. It replaces the entrypoint, ``failToPass`` and
            ``passToPass``. The agent's ``eval`` and ``pdb`` still run the entrypoint.
    """

    fail_to_pass: TestIds = ()
    pass_to_pass: TestIds = ()
    hidden_files: InlineFiles = ()
    test_patch: LargeText | None = None
    parser: Literal["auto", "pytest", "exitStatus"] = "auto"
    stop_when_eval_passes: bool = False
    require_clean: bool = False
    evaluation: Evaluation | None = None


class Resources(ManifestStruct, frozen=True, kw_only=True):
    """Resource requests and limits of the sandbox, as of a container.

    Attributes:
        requests: Resources that are reserved for the sandbox, such as cpu and memory.
        limits: Maximum amounts of resources that the sandbox may use.
    """

    requests: Quantities = msgspec.field(default_factory=dict)
    limits: Quantities = msgspec.field(default_factory=dict)


def split_hashes(requirement: str) -> tuple[str, frozenset[str]]:
    """Return a requirement without its hashes, and the hashes: SHA-256 digests of the wheels that may be installed."""
    plain, *hashes = requirement.split(" --hash=sha256:")
    return plain, frozenset(hashes)


def without_hashes(requirements: Sequence[str]) -> list[int]:
    """Return the indexes of requirements without hashes. The list is empty if none of the requirements has hashes."""
    missing = [index for index, requirement in enumerate(requirements) if not split_hashes(requirement)[1]]
    return missing if len(missing) < len(requirements) else []


class Environment(ManifestStruct, frozen=True, kw_only=True):
    """Python environment of the task's programs.

    A local run creates it. ``dgym image build`` builds an image with it.

    Attributes:
        python: Version of Python, such as "3.9". Without it, the version that runs dgym.
        requirements: Requirements for pip. If a requirement has hashes of its wheels (``name==1.2
            --hash=sha256:DIGEST``), all requirements need hashes.
        system_packages: Debian packages of the image, such as libxml2. A local run does not install them.
        install: How the repository itself is installed: "editable" as with ``pip install -e``, or "none". Without it,
            editable if the repository has a build system (a ``pyproject.toml`` with ``build-system`` or ``project``, or
            a ``setup.py``).
        extras: Extras of the repository's package whose dependencies are installed, such as test.
        groups: Dependency groups of ``pyproject.toml`` (PEP 735) that are installed, such as dev.
    """

    python: PythonVersion | None = None
    requirements: Requirements = ()
    system_packages: Annotated[tuple[DebianPackage, ...], msgspec.Meta(max_length=256)] = ()
    install: Literal["editable", "none"] | None = None
    extras: Annotated[tuple[ExtraName, ...], msgspec.Meta(max_length=64)] = ()
    groups: Annotated[tuple[ExtraName, ...], msgspec.Meta(max_length=64)] = ()


class DebugTaskSpec(ManifestStruct, frozen=True, kw_only=True):
    """Specification of a task. An Episode can also contain it inline.

    Attributes:
        image: Image of the sandbox. It contains the interpreter and all dependencies of the program. If the task has no
            source, it also contains the repository. Without ``image``, the sandbox runs the image of this release.
        interpreter: The Python interpreter in the image that runs dgym's runner. Version 3.6 or newer.
        working_directory: Directory of the repository in the sandbox.
        source: Source of the repository. At most one of its fields can be given. Without it, the image must contain the
            repository.
        environment: Python environment of the task's programs. An image must already contain it.
        requirements: Short form of ``environment.requirements``. Only one of the two can be given.
        setup_commands: Shell commands that run once before the agent starts, in the sandbox and in the verifier.
        activate: A line for the shell, such as the activation of a conda environment. All commands and the debugger run
            in the environment that results from it.
        entrypoint: Command that runs the tests.
        debug_entrypoint: Command that ``pdb`` debugs. Without it, the entrypoint.
        entrypoint_timeout_seconds: Time limit of the entrypoint.
        instructions: Description of the task for the agent.
        ignore_patterns: Files that the agent cannot see, as in a .gitignore file. They are added to the repository's
            .debugignore.
        read_only_patterns: Files that the agent cannot change, as in a .gitignore file. They are added to the
            repository's .debugreadonly.
        build_commands: Shell commands that run before the tests when the episode is scored.
        env: Environment variables of all commands.
        scoring: How an episode is scored. Without it, all tests that are collected on the untouched repository must
            pass.
        solution: The patch that repairs the bug, in the format of git diff, for the agent named solution. Models never
            see it.
        pod_template: Name of the cluster's pod template for the sandbox. Without it, the default template of the
            operator.
        resources: Resource requests and limits of the sandbox.
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
        """Return ``environment`` with the short form ``requirements`` filled in."""
        environment = self.environment or Environment()
        return msgspec.structs.replace(environment, requirements=self.requirements or environment.requirements)

    def image_problem(self) -> str | None:
        """Return why the task cannot run in a container: it declares an environment but no image. None if it can."""
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


class DebugTaskStatus(ManifestStruct, frozen=True, kw_only=True):
    """Observed state of a task.

    Attributes:
        conditions: Healthy, after ``dgym benchmark health --cluster`` has run the task. True with the reason Healthy.
            False with the reason Flaky (equal runs have different results) or Broken (the solution fails, the untouched
            repository passes, or the task cannot run). Unknown with the reason NotChecked (the runs failed for other
            reasons).
    """

    conditions: Conditions = ()


class DebugTask(ManifestStruct, frozen=True, kw_only=True, omit_defaults=False):
    """A bug in a Python repository and the tests that its repair must pass. Any number of episodes can use it.

    Attributes:
        spec: Specification of the task. It cannot be changed. Create a DebugTask with another name instead.
        status: Observed state of the task.
    """

    api_version: Literal["dgym.dev/v1alpha1"] = API_VERSION
    kind: Literal["DebugTask"] = "DebugTask"
    metadata: ObjectMeta
    spec: DebugTaskSpec
    status: DebugTaskStatus = DebugTaskStatus()
