"""Target for untrusted policy files and paths: every query returns fast, and ignored files are read-only."""

import contextlib

from hypothesis import strategies as st

from dgym.errors import ManifestError, PathError
from dgym.session.scoring._protection import affects_tests, files_of_shell_line, protect, why_dropped
from dgym.workspace import Policy
from dgym.workspace._paths import normalize, resolve_link
from tests.fuzz.engine import Target

_SIGNS = (
    "*",
    "**",
    "?",
    "[",
    "]",
    "!",
    "\\",
    "/",
    "#",
    " ",
    "\t",
    "\r",
    "a",
    "b.py",
    "-",
    "^",
    "{",
    "}",
    "(",
    ")",
    "+",
    "|",
    "$",
    ".",
    "..",
    "\0",
    "\ud800",
    "ä",
    "--",
    "&&",
    "[[:alpha:]]",
    "[a-z]",
    "\ufeff",
    "\u2028",
)
_LINES = st.lists(st.sampled_from(_SIGNS), max_size=14).map("".join) | st.text(max_size=12)
_TEXTS = st.lists(_LINES, max_size=6).map("\n".join) | st.sampled_from(
    ("*a" * 2000, "a/" * 2000, "[a" * 500, "**/" * 300 + "x")
)
_PARTS = st.sampled_from(
    (
        "a",
        "b.py",
        "src",
        "test_x.py",
        "conftest.py",
        ".git",
        "ä",
        "a b",
        "\udcff",
        "x" * 255,
        "!",
        "[",
        "*",
        "a\nb",
        "#",
        "-",
    )
)
_PATHS = st.lists(_PARTS, min_size=1, max_size=6).map("/".join)
_POLICY_PATHS = st.tuples(
    st.lists(_PARTS, max_size=3).map(lambda parts: "".join(f"{part}/" for part in parts)),
    st.sampled_from((".debugignore", ".debugreadonly", ".gitignore")),
).map("".join)
_INPUTS = st.tuples(
    st.dictionaries(_POLICY_PATHS, _TEXTS, max_size=3),
    st.lists(_LINES, max_size=3),
    st.lists(_PATHS, min_size=1, max_size=6),
    st.text(max_size=40) | st.lists(st.sampled_from(("/", "..", ".", "a", "~", "\0", "//")), max_size=8).map("".join),
)


def check(value: tuple[dict[str, str], list[str], list[str], str]) -> None:
    """Query a policy and the protection of scoring for every path."""
    files, own, paths, text = value
    for patterns in ((), own):
        with contextlib.suppress(ManifestError):
            policy = Policy.parse(files, ignore=patterns, read_only=patterns)
            for path in paths:
                for is_dir in (False, True):
                    ignored = policy.ignored(path, is_dir)
                    assert not ignored or policy.read_only(path, is_dir)
                    policy.excluded_from_patch(path, is_dir)
    protect(paths, [f"{path}::test" for path in paths], [text])
    for path in (*paths, text):
        affects_tests(path)
        why_dropped(path)
        resolve_link(path, text, dict.fromkeys(paths, text))
        with contextlib.suppress(PathError):
            assert not normalize(path, "/workspace").startswith(("/", "../"))
    files_of_shell_line(text, paths)


TARGET = Target("policies", _INPUTS, check)
