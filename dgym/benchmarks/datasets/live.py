"""SWE-bench-Live and SWE-rebench V2. A row has the test commands, and the name or the code of a parser."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from dgym.api import DEFAULT_ENTRYPOINT, Evaluation
from dgym.benchmarks.datasets._adapter import Adapter, Fields, ImageNames, Row, RowError
from dgym.benchmarks.datasets.swebench import END, START, WORKING_DIRECTORY, evaluation, parser_name, without_test_files

_FUNCTION = re.compile(r"^def (parse|parser|parse_log\w*|log_parser)\(", re.MULTILINE)
_CODE = """{code}

_given = {function}
_names = {{
    "pass": "PASSED", "passed": "PASSED", "fail": "FAILED", "failed": "FAILED",
    "skip": "SKIPPED", "skipped": "SKIPPED", "error": "ERROR", "xfail": "XFAIL",
}}

def parse(log):
    return {{name: _names.get(str(outcome).lower(), "ERROR") for name, outcome in dict(_given(log)).items()}}
"""


class SweBenchLive(Adapter):
    """SWE-bench-Live. The code of a parser is only executed in the verifier."""

    name: ClassVar[str] = "swebench-live"
    summary: ClassVar[str] = "SWE-bench-Live: commands and parser in the row"
    splits: ClassVar[tuple[str, ...]] = ("test", "lite", "verified", "full")

    def row(self, data: Mapping[str, Any], images: ImageNames) -> Row:
        """Convert a row."""
        fields = Fields(data)
        commands = {name: _commands(fields, name) for name in ("rebuild_cmds", "test_cmds", "print_cmds")}
        return _row(fields, images, fields.optional("docker_image") or fields.optional("image") or None, commands,
                    fields.optional("log_parser") or "pytest")  # fmt: skip


class SweRebench(Adapter):
    """The Python part of SWE-rebench V2. ``install_config`` has the commands and the name of the parser."""

    name: ClassVar[str] = "swe-rebench"
    summary: ClassVar[str] = "SWE-rebench V2 (Python): commands and parser's name in the row"
    splits: ClassVar[tuple[str, ...]] = ("test", "train", "filtered")

    def row(self, data: Mapping[str, Any], images: ImageNames) -> Row:
        """Convert a row."""
        fields = Fields(data)
        language = fields.optional("language").lower()
        if language not in ("", "python"):
            raise RowError(f"language is {language!r}; dgym debugs Python")
        config = fields.value("install_config")
        if not isinstance(config, dict):
            raise RowError("install_config is missing")
        given = Fields(config)
        commands = {"test_cmds": _commands(given, "test_cmd")}
        image = fields.optional("image_name") or fields.optional("docker_image") or None
        return _row(fields, images, image, commands, given.optional("log_parser") or "pytest")


def _row(fields: Fields, images: ImageNames, image: str | None, commands: Mapping[str, list[str]], parser: str) -> Row:
    instance = fields.text("instance_id")
    if not commands["test_cmds"]:
        raise RowError("does not name a command that runs the tests")
    inside = [*commands["test_cmds"], *commands.get("print_cmds", ())]
    lines = [
        "#!/bin/bash",
        "set -uxo pipefail",
        f"cd {WORKING_DIRECTORY}",
        *commands.get("rebuild_cmds", ()),
        f": '{START}'",
        *inside,
        f": '{END}'",
    ]
    values = {"instance_id": instance, "image_id": instance.replace("__", "_1776_").lower()}
    command = inside[0] if len(inside) == 1 and "\n" not in inside[0] else DEFAULT_ENTRYPOINT
    return Row(
        instance=instance,
        instructions=fields.text("problem_statement"),
        image=images.name(image, "starryzhang/sweb.eval.x86_64.{{ image_id }}:latest", values),
        working_directory=WORKING_DIRECTORY,
        repository=fields.text("repo"),
        revision=fields.text("base_commit"),
        evaluation=_evaluation(fields, "\n".join([*lines, ""]), parser),
        test_patch=fields.optional("test_patch"),
        solution=fields.optional("patch"),
        entrypoint=without_test_files(command, fields.optional("test_patch")),
    )


def _evaluation(fields: Fields, script: str, parser: str) -> Evaluation:
    if "def " not in parser:
        return evaluation(fields, script, parser_name(parser), "passAndFail")
    function = _FUNCTION.search(parser)
    if function is None:
        raise RowError("log_parser is code without a function parse, parser or parse_log")
    code = _CODE.format(code=parser.rstrip(), function=function[1])
    return evaluation(fields, script, "code", "passAndFail", code)


def _commands(fields: Fields, name: str) -> list[str]:
    """The field ``name``, which may be one command or a list of commands."""
    try:
        value = fields.value(name)
    except RowError:
        value = fields.text(name)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise RowError(f"{name} is neither a command nor a list of commands")
    return value
