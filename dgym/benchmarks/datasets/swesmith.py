"""SWE-smith: each row has a patch that adds a bug to a working repository. The reverse patch is the solution."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from dgym.benchmarks.datasets._adapter import Adapter, Fields, ImageNames, Row, RowError
from dgym.benchmarks.datasets.swebench import WORKING_DIRECTORY

IMAGE = "jyangballin/swesmith.x86_64.{{ image_id }}"
_ACTIVATE = "source /opt/miniconda3/bin/activate && conda activate testbed"
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)")
_MARK = "DGYM_BUG_PATCH"
_LONGEST = 60_000
_COMMIT = """\
command -v git >/dev/null || exit 1
g() { git -c safe.directory='*' -c user.name=dgym -c user.email=dgym@localhost "$@"; }
rm -rf .git && g init -q && g add -A && g commit -q -m "Initial commit" """
_SWAPPED = {
    "new file mode": "deleted file mode",
    "deleted file mode": "new file mode",
    "old mode": "new mode",
    "new mode": "old mode",
    "rename from": "rename to",
    "rename to": "rename from",
}


class SweSmith(Adapter):
    """SWE-smith. All test suites use pytest, so dgym's pytest plugin scores them."""

    name: ClassVar[str] = "swesmith"
    summary: ClassVar[str] = "SWE-smith: bugs made for whole repositories, scored by pytest's plugin"
    splits: ClassVar[tuple[str, ...]] = ("train", "test")

    def row(self, data: Mapping[str, Any], images: ImageNames) -> Row:
        """Convert a row."""
        fields = Fields(data)
        instance, bug = fields.text("instance_id"), fields.text("patch")
        name, _, commit = fields.text("repo").removeprefix("swesmith/").rpartition(".")
        if not name:
            raise RowError("repo is not of the form swesmith/owner__name.commit")
        if len(bug) > _LONGEST or _MARK in bug:
            raise RowError(f"patch is longer than {_LONGEST:,} characters, or contains {_MARK}")
        values = {"instance_id": instance, "image_id": f"{name}.{commit}".replace("__", "_1776_").lower()}
        tests = fields.names("FAIL_TO_PASS")
        kept = [test for test in fields.names("PASS_TO_PASS") if test not in tests]
        if not tests:
            raise RowError("FAIL_TO_PASS does not name a test, so that nothing could be repaired")
        strange = [test for test in (*tests, *kept) if "::" not in test]
        if strange:
            raise RowError(f"{strange[0]!r} is not the id of a pytest test")
        return Row(
            instance=instance,
            instructions=fields.optional("problem_statement") or "Some tests fail. Find the cause and repair it.",
            image=images.name(fields.optional("image_name") or None, IMAGE, values),
            working_directory=WORKING_DIRECTORY,
            repository=name.replace("__", "/", 1),
            revision=commit,
            fail_to_pass=tests,
            pass_to_pass=tuple(kept),
            solution=reverse_patch(bug),
            entrypoint="python -m pytest -q",
            activate=_ACTIVATE,
            # The history is replaced, because the commit before the bug would show the solution.
            setup_commands=(f"git apply -v - <<'{_MARK}'\n{bug.rstrip()}\n{_MARK}", _COMMIT),
        )


def reverse_patch(patch: str) -> str:
    """The reverse of ``patch``, which is in the format of ``git diff``.

    Raises:
        RowError: The patch changes a binary file.
    """
    if "\nGIT binary patch" in patch or "\nBinary files" in patch:
        raise RowError("patch changes a binary file")
    return "".join(f"{line}\n" for line in _reversed(patch.rstrip("\n").split("\n")))


def _reversed(lines: list[str]) -> Iterator[str]:
    left = [0, 0]
    held = ""
    for line in lines:
        if left[0] > 0 or left[1] > 0 or line.startswith("\\"):
            sign = line[:1] or " "
            left[0] -= sign in " -"
            left[1] -= sign in " +"
            yield {"+": "-", "-": "+"}.get(sign, sign) + line[1:]
        elif hunk := _HUNK.match(line):
            left = [int(hunk[2] or 1), int(hunk[4] or 1)]
            old, new = (",".join(filter(None, pair)) for pair in (hunk.group(1, 2), hunk.group(3, 4)))
            yield f"@@ -{new} +{old} @@{hunk[5]}"
        elif line.startswith("--- "):
            held = line[4:]
        elif line.startswith("+++ "):
            yield "--- " + re.sub("^b/", "a/", line[4:])
            yield "+++ " + re.sub("^a/", "b/", held)
        else:
            yield _swapped(line)


def _swapped(line: str) -> str:
    if index := re.fullmatch(r"index ([0-9a-f]+)\.\.([0-9a-f]+)(.*)", line):
        return f"index {index[2]}..{index[1]}{index[3]}"
    if names := re.fullmatch(r"diff --git a/(.*) b/(.*)", line):
        return f"diff --git a/{names[2]} b/{names[1]}"
    for word, other in _SWAPPED.items():
        if line.startswith(f"{word} "):
            return other + line[len(word) :]
    return line
