"""R2E-Gym: each row has an image with ``run_tests.sh``, and the expected outcome of every test."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import msgspec

from dgym.api import Evaluation
from dgym.benchmarks.datasets._adapter import Adapter, Fields, ImageNames, Row, RowError
from dgym.benchmarks.datasets.swebench import WORKING_DIRECTORY
from dgym.decoding import DECODE_ERRORS
from dgym.errors import PatchError
from dgym.workspace.patches import parse_patch

IMAGE = "namanjain12/{{ repo }}_final:{{ commit }}"
_ISSUE = re.compile(r"\[ISSUE\](.*?)\[/ISSUE\]", re.DOTALL)
_SCRIPT = f"""\
#!/bin/bash
cd {WORKING_DIRECTORY}
for place in /r2e_tests /root/r2e_tests; do
  if [ -e "$place" ] && [ ! -e r2e_tests ]; then ln -s "$place" r2e_tests; fi
done
for script in run_tests.sh /run_tests.sh /root/run_tests.sh; do
  if [ -e "$script" ]; then exec bash "$script"; fi
done
echo "no run_tests.sh" >&2
exit 127
"""
_PARSER = r"""
import re

def parse(log):
    log = re.sub("\x1b\\[[0-9;]*m", "", log)
    found = {}
    if "short test summary info" not in log:
        return found
    for line in log.split("short test summary info")[1].strip().split("\n"):
        for outcome in ("PASSED", "FAILED", "ERROR"):
            if outcome in line:
                name = ".".join(line.split("::")[1:]).split(" - ")[0]
                if name:
                    found[name] = outcome
                break
    return found
"""
_FIELD = "parsed_commit_content"
_PREFIXES = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}


class R2EGym(Adapter):
    """R2E-Gym. An episode is resolved if all outcomes equal those of the repaired commit."""

    name: ClassVar[str] = "r2egym"
    summary: ClassVar[str] = "R2E-Gym: an image for each row, scored by exact outcomes"
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    key: ClassVar[str] = "commit_hash"

    def row(self, data: Mapping[str, Any], images: ImageNames) -> Row:
        """Convert a row."""
        fields = Fields(data)
        commit, repository = fields.text("commit_hash"), fields.text("repo_name")
        expected = fields.value("expected_output_json")
        if not isinstance(expected, dict) or not expected:
            raise RowError("expected_output_json does not name a test")
        statement = fields.text("problem_statement")
        issue = _ISSUE.search(statement)
        values = {"instance_id": commit, "repo": repository, "commit": commit}
        outcomes = {re.sub(r"\x1b\[[0-9;]*m", "", name).split(" - ")[0]: outcome for name, outcome in expected.items()}
        strange = sorted({str(one) for one in outcomes.values()} - {"PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"})
        if strange:
            raise RowError(f"expected_output_json has the outcome {json.dumps(strange[0])}")
        return Row(
            instance=commit,
            instructions=(issue[1] if issue else statement).strip(),
            image=images.name(fields.optional("docker_image") or None, IMAGE, values),
            working_directory=WORKING_DIRECTORY,
            repository=repository,
            revision=f"{commit}^",
            evaluation=Evaluation(
                script=_SCRIPT,
                parser="code",
                parser_code=_PARSER,
                rule="exact",
                outcomes={name: outcome for name, outcome in outcomes.items() if name},
            ),
            read_only_patterns=("/run_tests.sh", "/r2e_tests"),
            entrypoint="python -m pytest -q",
            activate=f"export PATH={WORKING_DIRECTORY}/.venv/bin:$PATH",
            solution=_solution(fields),
        )


def _solution(fields: Fields) -> str:
    """The commit's changes to the files in ``relevant_files``, which are not tests."""
    content = fields.optional("parsed_commit_content")
    return (
        patch_of(content, fields.names("relevant_files") if fields.value("relevant_files") else ()) if content else ""
    )


class _Range(msgspec.Struct):
    start: int
    length: int | None = None

    def __str__(self) -> str:
        return f"{self.start},{1 if self.length is None else self.length}"


class _Descriptor(msgspec.Struct):
    old_range: _Range
    new_range: _Range
    section: str | None = None


class _DiffLine(msgspec.Struct):
    content: str
    type: str


class _LineGroup(msgspec.Struct):
    all_lines: list[_DiffLine]


class _Hunk(msgspec.Struct):
    descriptor: _Descriptor
    line_group: _LineGroup


class _File(msgspec.Struct):
    path: str


class _Header(msgspec.Struct):
    file: _File


class _FileDiff(msgspec.Struct):
    header: _Header
    hunks: list[_Hunk] | None = None
    is_binary_file: bool = False


class _Commit(msgspec.Struct):
    file_diffs: list[_FileDiff]


def patch_of(content: str, paths: Collection[str]) -> str:
    """The patch of the commit's text files in ``paths``. If ``paths`` is empty, of all text files except tests.

    Raises:
        RowError: The content is not a commit, or does not give a valid patch.
    """
    try:
        commit = msgspec.json.decode(content, type=_Commit)
    except DECODE_ERRORS as error:
        raise RowError(f"{_FIELD}: {error}") from None
    chosen = [each for each in commit.file_diffs if _is_chosen(each, paths)]
    patch = "".join(_section(each) for each in chosen)
    try:
        parse_patch(patch.encode())
    except PatchError as error:
        raise RowError(f"{_FIELD} is not a valid patch: {error}") from None
    return patch


def _is_chosen(diff: _FileDiff, paths: Collection[str]) -> bool:
    path = diff.header.file.path
    is_source = path in paths if paths else not any(part.startswith("test") for part in path.split("/"))
    return is_source and not diff.is_binary_file and bool(diff.hunks)


def _section(diff: _FileDiff) -> str:
    path, hunks = diff.header.file.path, diff.hunks or []
    old, new = f"a/{path}", f"b/{path}"
    lines = [f"diff --git {old} {new}"]
    if hunks[0].descriptor.old_range.start == 0:
        lines, old = [*lines, "new file mode 100644"], "/dev/null"
    elif hunks[0].descriptor.new_range.start == 0:
        lines, new = [*lines, "deleted file mode 100644"], "/dev/null"
    lines += [f"--- {old}", f"+++ {new}"]
    for hunk in hunks:
        section = (hunk.descriptor.section or "").strip()
        lines.append(f"@@ -{hunk.descriptor.old_range} +{hunk.descriptor.new_range} @@ {section}".rstrip())
        lines += [_line(line) for line in hunk.line_group.all_lines]
    return "\n".join(lines) + "\n"


def _line(line: _DiffLine) -> str:
    if line.type not in _PREFIXES:
        raise RowError(f"{_FIELD} has a line of type {line.type!r}; the types are {', '.join(_PREFIXES)}")
    return _PREFIXES[line.type] + line.content
