"""SWE-bench, rows of version 5 and 4. Rows of version 5 contain image, script and parser. Rows of version 4 do not."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, get_args

from dgym.api import DEFAULT_ENTRYPOINT, Evaluation, Parser
from dgym.benchmarks.datasets._adapter import Adapter, Fields, ImageNames, Row, RowError

IMAGE = "swebench/sweb.eval.x86_64.{{ image_id }}:latest"
WORKING_DIRECTORY = "/testbed"
_RULES = {"pass_and_fail": "passAndFail", "fail_only": "failOnly"}
_ALIASES = {
    **dict.fromkeys(("astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray"), "pytest"),
    **dict.fromkeys(("pydicom", "requests", "pylint", "pytest_options"), "pytestOptions"),
    **dict.fromkeys(("astropy", "scikit", "sphinx", "pytest_v2"), "pytestV2"),
}
# The harness of version 4 has these values by repository and version. These are the values of most versions.
_COMMANDS = {
    "django/django": "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
    "mwaskom/seaborn": "pytest --no-header -rA",
    "sphinx-doc/sphinx": "tox --current-env -epy39 -v --",
    "sympy/sympy": "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
}
_PARSERS = {
    "astropy/astropy": "pytestV2",
    "django/django": "django",
    "matplotlib/matplotlib": "matplotlib",
    "mwaskom/seaborn": "seaborn",
    "psf/requests": "pytestOptions",
    "pydicom/pydicom": "pytestOptions",
    "pylint-dev/pylint": "pytestOptions",
    "scikit-learn/scikit-learn": "pytestV2",
    "sphinx-doc/sphinx": "pytestV2",
    "sympy/sympy": "sympy",
    **dict.fromkeys(
        (
            *("pallets/flask", "pydata/xarray", "pylint-dev/astroid", "pytest-dev/pytest", "pvlib/pvlib-python"),
            *("pyvista/pyvista", "sqlfluff/sqlfluff", "marshmallow-code/marshmallow"),
        ),
        "pytest",
    ),
}
_NO_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
_PATCHED = re.compile(r"^diff --git a/.* b/(.*)$", re.MULTILINE)
START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1\s*$")
_RESET = re.compile(r"^\s*(?:git\s+checkout\s+[0-9a-f]{7,40}\s|rm\s+-f\s)")
_HEADER = "diff --git a/"
_ACTIVATE = re.compile(r"^\s*(?:source\s+\S*/activate\b|conda\s+activate\b)")


class SweBench(Adapter):
    """SWE-bench full, Lite and Verified. Rows of Multilingual are refused, because they are not Python."""

    name: ClassVar[str] = "swebench"
    summary: ClassVar[str] = "SWE-bench (full, Lite, Verified), rows of version 5 and 4"
    splits: ClassVar[tuple[str, ...]] = ("test", "dev", "train")

    def row(self, data: Mapping[str, Any], images: ImageNames) -> Row:
        """Convert a row of version 5 or 4."""
        fields = Fields(data)
        instance, test_patch = fields.text("instance_id"), fields.optional("test_patch")
        parser = parser_name(fields.text("log_parser")) if data.get("log_parser") else self._parser(fields)
        parts = without_test_patch(fields.optional("eval_script") or _script(fields, test_patch))
        values = {"instance_id": instance, "image_id": instance.replace("__", "_1776_").lower()}
        return Row(
            instance=instance,
            instructions=fields.text("problem_statement"),
            image=images.name(fields.optional("image") or None, IMAGE, values),
            working_directory=WORKING_DIRECTORY,
            repository=fields.text("repo"),
            revision=fields.text("base_commit"),
            evaluation=evaluation(fields, parts.script, parser, rule_name(fields.optional("eval_type"))),
            test_patch=test_patch if parts.applied else "",
            solution=fields.optional("patch"),
            entrypoint=without_test_files(command_between_markers(parts.script) or DEFAULT_ENTRYPOINT, test_patch),
            activate=parts.activate,
            difficulty=fields.optional("difficulty"),
        )

    def _parser(self, fields: Fields) -> str:
        repository = fields.text("repo")
        if repository not in _PARSERS:
            raise RowError(f"log_parser is missing, and no parser is known for the repository {repository!r}")
        return _PARSERS[repository]


def evaluation(fields: Fields, script: str, parser: str, rule: str, code: str | None = None) -> Evaluation:
    """The evaluation of a row with the fields FAIL_TO_PASS and PASS_TO_PASS."""
    fail_to_pass, pass_to_pass = fields.names("FAIL_TO_PASS"), fields.names("PASS_TO_PASS")
    if not fail_to_pass:
        raise RowError("FAIL_TO_PASS does not name a test, so that nothing could be repaired")
    both = set(fail_to_pass).intersection(pass_to_pass)
    return Evaluation(
        script=with_exit_status(script),
        parser=parser,  # type: ignore[arg-type]
        parser_code=code,
        rule=rule,  # type: ignore[arg-type]
        fail_to_pass=fail_to_pass,
        pass_to_pass=tuple(test for test in pass_to_pass if test not in both),
    )


def parser_name(official: str) -> str:
    """The dgym name of a parser of the official harness."""
    name = official.removeprefix("parse_log_")
    name = _ALIASES.get(name, name)
    if name not in get_args(Parser) or name == "code":
        raise RowError(f"log_parser is {official!r}; only the parsers of Python repositories are known")
    return name


def rule_name(official: str) -> str:
    """The dgym name of an ``eval_type``."""
    if official and official not in _RULES:
        raise RowError(f"eval_type is {official!r}; the types are {', '.join(_RULES)}")
    return _RULES[official or "pass_and_fail"]


def _script(fields: Fields, test_patch: str) -> str:
    """The evaluation script, as version 4 of the harness generates it."""
    repository = fields.text("repo")
    command = _COMMANDS.get(repository, "pytest -rA")
    if repository == "django/django" and fields.optional("version") == "1.9":
        command = "./tests/runtests.py --verbosity 2"
    tests = [path for path in _PATCHED.findall(test_patch) if not path.endswith(_NO_TESTS)]
    if not tests:
        raise RowError("test_patch does not change a test, and eval_script is missing")
    if repository == "django/django":
        tests = [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in tests]
    return "\n".join(
        [
            "#!/bin/bash",
            "set -uxo pipefail",
            "source /opt/miniconda3/bin/activate",
            "conda activate testbed",
            f"cd {WORKING_DIRECTORY}",
            f"git apply -v - <<'EOF_TEST_PATCH'\n{test_patch}\nEOF_TEST_PATCH",
            f": '{START}'",
            f"{command} {' '.join(tests)}",
            f": '{END}'",
            "",
        ]
    )


class EvaluationParts(NamedTuple):
    """A script without its test patch.

    ``applied`` is True if the script contained a test patch. ``activate`` is its command that activates the Python
    environment, or None.
    """

    script: str
    applied: bool
    activate: str | None


def without_test_patch(script: str) -> EvaluationParts:
    """``script`` without the commands that reset the tests and apply the test patch. dgym does both itself.

    If the script does not apply a patch from a here-document, it is unchanged.
    """
    lines = script.rstrip("\n").split("\n")
    kept: list[str] = []
    found = False
    end: str | None = None
    for line in lines:
        if end is not None:
            end = None if line.strip() == end else end
        elif "git apply" in line and (heredoc := _HEREDOC.search(line)):
            found, end = True, heredoc[2]
        else:
            kept.append(line)
    activate = " && ".join(dict.fromkeys(line.strip() for line in lines if _ACTIVATE.match(line)))
    if found:
        after = next((number for number, line in enumerate(kept) if END in line), len(kept))
        kept = [line for line in kept[: after + 1] if not _RESET.match(line)]
    return EvaluationParts("\n".join(kept) + "\n" if found else script, found, activate or None)


def with_exit_status(script: str) -> str:
    """``script`` with commands that print the exit status after the output of the tests, like the official harness."""
    lines = script.rstrip("\n").split("\n")
    for number, line in enumerate(lines):
        if END in line:
            lines[number : number + 1] = [
                "SWEBENCH_TEST_EXIT_CODE=$?",
                line,
                'echo ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"',
            ]
            break
    return "\n".join(lines) + "\n"


def command_between_markers(script: str) -> str | None:
    """The command between the markers, or None if it is not exactly one line."""
    lines = script.split("\n")
    starts = [number for number, line in enumerate(lines) if START in line]
    ends = [number for number, line in enumerate(lines) if END in line]
    if not starts or not ends:
        return None
    inside = [line.strip() for line in lines[starts[0] + 1 : ends[0]] if line.strip()]
    inside = [line for line in inside if not line.startswith(("SWEBENCH_TEST_EXIT_CODE", "#"))]
    return inside[0] if len(inside) == 1 and not inside[0].endswith("\\") else None


def without_test_files(command: str, test_patch: str) -> str:
    """``command`` without the files that ``test_patch`` changes, so that it runs the test suite of the repository.

    Returns the default entrypoint if a part of a word of the command names such a file.
    """
    paths, modules = _test_files(test_patch)
    words = command.split()
    kept = [word for word in words if word.strip("\"'").partition("::")[0] not in paths | modules]
    suite = command if kept == words else " ".join(kept)
    return DEFAULT_ENTRYPOINT if names_test_files(suite, test_patch) else suite


def names_test_files(command: str, test_patch: str) -> bool:
    """Whether ``command`` contains the base name or the module name of a file that ``test_patch`` changes."""
    paths, modules = _test_files(test_patch)
    names = {path.rpartition("/")[2] for path in paths} | modules
    return not names.isdisjoint(re.split(r"[^\w.-]", command))


def _test_files(test_patch: str) -> tuple[set[str], set[str]]:
    """The paths in a patch, and their module names in the notation of Django's test runner."""
    headers = [line[len(_HEADER) :] for line in test_patch.split("\n") if line.startswith(_HEADER)]
    paths = {path for header in headers for path in header.split(" b/", 1)}
    return paths, {path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in paths}
