"""SWE-bench: rows of version 5, which bring image, script and parser, and of version 4, which bring neither."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from dgym.api import DEFAULT_ENTRYPOINT, Evaluation, Parser
from dgym.benchmarks.datasets.adapter import Adapter, Fields, ImageNames, Row, RowError
from dgym.benchmarks.datasets.scripts import (
    END,
    START,
    command_between_markers,
    with_exit_status,
    without_test_files,
    without_test_patch,
)

IMAGE = "swebench/sweb.eval.x86_64.{{ image_id }}:latest"
WORKING_DIRECTORY = "/testbed"
_RULES = {"pass_and_fail": "passAndFail", "fail_only": "failOnly"}
_ALIASES = {
    **dict.fromkeys(("astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray"), "pytest"),
    **dict.fromkeys(("pydicom", "requests", "pylint", "pytest_options"), "pytestOptions"),
    **dict.fromkeys(("astropy", "scikit", "sphinx", "pytest_v2"), "pytestV2"),
}
# Version 4 kept these in the harness, by repository and version; here is what most versions have.
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


class SweBench(Adapter):
    """SWE-bench: full, Lite and Verified. Multilingual has no Python: its parsers are refused."""

    name: ClassVar[str] = "swebench"
    summary: ClassVar[str] = "SWE-bench (full, Lite, Verified), rows of version 5 and 4"
    splits: ClassVar[tuple[str, ...]] = ("test", "dev", "train")

    def row(self, data: Mapping[str, Any], images: ImageNames) -> Row:
        """What a row of version 5, or of version 4, means."""
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
    """The evaluation of a row that names its tests in FAIL_TO_PASS and PASS_TO_PASS."""
    fail_to_pass, pass_to_pass = fields.names("FAIL_TO_PASS"), fields.names("PASS_TO_PASS")
    if not fail_to_pass:
        raise RowError("FAIL_TO_PASS names no test, so that nothing could be repaired")
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
    """The name in dgym of a parser of the official harness."""
    name = official.removeprefix("parse_log_")
    name = _ALIASES.get(name, name)
    if name not in get_args(Parser) or name == "code":
        raise RowError(f"log_parser is {official!r}; only the parsers of Python repositories are known")
    return name


def rule_name(official: str) -> str:
    """The name in dgym of an eval_type."""
    if official and official not in _RULES:
        raise RowError(f"eval_type is {official!r}; known are {', '.join(_RULES)}")
    return _RULES[official or "pass_and_fail"]


def _script(fields: Fields, test_patch: str) -> str:
    """The script that version 4 of the harness would make."""
    repository = fields.text("repo")
    command = _COMMANDS.get(repository, "pytest -rA")
    if repository == "django/django" and fields.optional("version") == "1.9":
        command = "./tests/runtests.py --verbosity 2"
    tests = [path for path in _PATCHED.findall(test_patch) if not path.endswith(_NO_TESTS)]
    if not tests:
        raise RowError("test_patch changes no test, and there is no eval_script")
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
