"""Text of an observation without what differs between two runs of the same thing.

Two runs of one scripted episode are equal after this: memory addresses, process ids, durations, and the place of a
workspace that has no fixed one are replaced by fixed words.
"""

import re

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b0x[0-9a-fA-F]{4,16}\b"), "0xADDRESS"),
    (re.compile(r"\b(pid|PID|process|Process)([ =:]+)\d+"), r"\1\2PID"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:s|ms|us|µs|seconds?|milliseconds?)\b"), "DURATION"),
    (re.compile(r"\(\d+:\d\d:\d\d(?:\.\d+)?\)"), "(DURATION)"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"/tmp/pytest-of-[\w.-]+/pytest-\d+"), "/tmp/PYTEST"),  # noqa: S108 - text, not a file of ours
)
# pytest draws its last line to the terminal's width, so the number of '=' depends on the duration inside it.
_RULER = re.compile(r"^=+ (.*DURATION.*?) =+$", re.MULTILINE)
_TEMPORARY_WORKSPACE = re.compile(r"/[^\s'\":,()]*/dgym-[\w.-]+(?:/workspace)?(?=[/\s'\":,()]|$)")


def normalize(text: str) -> str:
    """``text`` with addresses, process ids, durations, times and temporary places replaced."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _RULER.sub(r"=== \1 ===", text)
    return _TEMPORARY_WORKSPACE.sub("/workspace", text)
