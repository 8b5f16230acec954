"""Evaluation scripts of data sets: the part that the agent must not see, and the part that runs the tests."""

import re
from typing import NamedTuple

from dgym.api import DEFAULT_ENTRYPOINT

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1\s*$")
_RESET = re.compile(r"^\s*(?:git\s+checkout\s+[0-9a-f]{7,40}\s|rm\s+-f\s)")
_HEADER = "diff --git a/"
_ACTIVATE = re.compile(r"^\s*(?:source\s+\S*/activate\b|conda\s+activate\b)")


class EvaluationParts(NamedTuple):
    """A script without its test patch. ``applied``: whether the test patch was found in it, and taken out."""

    script: str
    applied: bool
    activate: str | None


def without_test_patch(script: str) -> EvaluationParts:
    """``script`` without what resets the tests and applies the test patch: dgym does both.

    Where the script applies no patch from a here-document, it is left as it is.
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
    """``script``, printing the tests' own exit status after the end of their output, as the official harness does."""
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
    """The command between the markers, where it is one line."""
    lines = script.split("\n")
    starts = [number for number, line in enumerate(lines) if START in line]
    ends = [number for number, line in enumerate(lines) if END in line]
    if not starts or not ends:
        return None
    inside = [line.strip() for line in lines[starts[0] + 1 : ends[0]] if line.strip()]
    inside = [line for line in inside if not line.startswith(("SWEBENCH_TEST_EXIT_CODE", "#"))]
    return inside[0] if len(inside) == 1 and not inside[0].endswith("\\") else None


def without_test_files(command: str, test_patch: str) -> str:
    """``command`` without the files that ``test_patch`` changes, so that it runs the repository's own suite.

    A command that names such a file inside another word becomes the default entrypoint.
    """
    paths, modules = _test_files(test_patch)
    words = command.split()
    kept = [word for word in words if word.strip("\"'").partition("::")[0] not in paths | modules]
    suite = command if kept == words else " ".join(kept)
    return DEFAULT_ENTRYPOINT if names_test_files(suite, test_patch) else suite


def names_test_files(command: str, test_patch: str) -> bool:
    """Whether ``command`` names a file that ``test_patch`` changes, by its path, its base name or as a module."""
    paths, modules = _test_files(test_patch)
    names = {path.rpartition("/")[2] for path in paths} | modules
    return not names.isdisjoint(re.split(r"[^\w.-]", command))


def _test_files(test_patch: str) -> tuple[set[str], set[str]]:
    """The paths in a patch, and the names of the modules as Django's runner takes them."""
    headers = [line[len(_HEADER) :] for line in test_patch.split("\n") if line.startswith(_HEADER)]
    paths = {path for header in headers for path in header.split(" b/", 1)}
    return paths, {path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in paths}
