"""Policy files mean what the same lines mean to git in a ``.gitignore``."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dgym.workspace import Policy

NAMES = (
    "a",
    "b",
    "ab",
    "abc",
    "a b",
    "é",
    "[x]",
    "!a",
    "#a",
    "a]",
    "B",
    ".py",
    "a.py",
    "a\\b",
    "-",
    "a ",
    "\ta",
    "new\nline",
)
PIECES = (
    *(
        "a",
        "b",
        "ab",
        "c",
        "é",
        "é"[:1],
        ".",
        "py",
        " ",
        "\t",
        "#",
        "!",
        "\\",
        "\\\\",
        "\\a",
        "\\*",
        "\\ ",
        "\\#",
        "\\!",
        "-",
    ),
    *(
        "*",
        "*",
        "**",
        "***",
        "?",
        "/",
        "/",
        "/",
        "[",
        "]",
        "[ab]",
        "[!a]",
        "[^a]",
        "[a-c]",
        "[]]",
        "[]-a]",
        "[a-]",
        "[[:alpha:]]",
    ),
    *(
        "[[:space:]b]",
        "[[:nope:]]",
        "[[:alpha:]",
        "[c-a]",
        "[\\]]",
        "[a/]",
        "[!x/]",
        "[[x]",
        "**/",
        "/**",
        "/**/",
        "*.py",
        "\r",
    ),
)
lines = st.builds(
    lambda bang, pieces: bang + "".join(pieces),
    st.sampled_from(("", "", "", "!")),
    st.lists(st.sampled_from(PIECES), max_size=6),
)
texts = st.builds(
    lambda rows, end: "\n".join(rows) + end, st.lists(lines, max_size=4), st.sampled_from(("", "\n", "\r\n"))
)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
EVERY_PATH = (
    *(
        "a",
        "b/a",
        "b/ab/a",
        "b/ab/abc",
        "a b",
        "B/é",
        "é",
        "ab/a.py",
        "ab/.py",
        "[x]/a",
        "!a",
        "#a",
        "abc/a]",
        "abc/b/c/a",
    ),
    *("a\\b", "-", "a ", "\ta", "ab/new\nline", "abc/b/a b/a"),
)


def make_tree(root: Path, files: dict[str, str], entries: list[str]) -> dict[str, bool]:
    """Write the tree and give every path in it with whether it is a directory."""
    for path in entries:
        target = root / path
        if target.exists() or any(parent.is_file() for parent in target.parents):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("")
    for path, text in files.items():
        target = root / path
        if target.parent.is_dir():
            target.write_text(text, newline="")
    return {
        str(path.relative_to(root)): path.is_dir()
        for path in root.rglob("*")
        if ".git" not in path.relative_to(root).parts
    }


@pytest.fixture
def scratch():
    made: list[str] = []

    def make() -> Path:
        made.append(tempfile.mkdtemp())
        return Path(made[-1])

    yield make
    for directory in made:
        shutil.rmtree(directory)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    root_text=texts,
    deeper=st.dictionaries(st.sampled_from(("b", "ab", "b/ab")), texts, max_size=2),
    extra=st.lists(paths, max_size=4),
)
@example(root_text="secret/\n!secret/keep.py\n", deeper={}, extra=["secret/keep.py", "other/secret"])
@example(root_text="*.py\n", deeper={"ab": "!a.py\n"}, extra=[])
@example(root_text="b/ab**/a\n", deeper={}, extra=["b/abx/y/a", "b/abc"])
@example(root_text="/*\n!/b\n/b/*\n!/b/ab\n", deeper={}, extra=[])
@example(root_text="b/[^a]b\n[[:alpha:]]b\n", deeper={}, extra=[])
@example(root_text="\ufeffa\n", deeper={}, extra=[])
@example(root_text="a\\ \na  \n", deeper={}, extra=[])
def test_policy_agrees_with_git(root_text, deeper, extra, git, scratch):
    root = scratch()
    files = {".gitignore": root_text, **{f"{directory}/.gitignore": text for directory, text in deeper.items()}}
    entries = make_tree(root, files, [*EVERY_PATH, *extra])
    git(root, "init", "-q")
    listing = "\0".join(entries).encode("utf-8", "surrogateescape")
    answer = git(root, "check-ignore", "--no-index", "-z", "--stdin", stdin=listing, check=False).stdout
    theirs = set(answer.decode("utf-8", "surrogateescape").split("\0")) - {""}

    present = {path: (root / path).read_bytes().decode("utf-8") for path in files if (root / path).is_file()}
    policy = Policy.parse({path.replace(".gitignore", ".debugignore"): text for path, text in present.items()})
    ours = {path for path, is_dir in entries.items() if policy.ignored(path, is_dir)}
    assert ours == theirs


def test_a_link_to_a_directory_is_no_directory(git, scratch):
    root = scratch()
    (root / "real").mkdir()
    (root / "link").symlink_to("real")
    (root / ".gitignore").write_text("link/\nreal/\n")
    git(root, "init", "-q")
    answer = git(root, "check-ignore", "--no-index", "link", "real", check=False).stdout
    assert answer == b"real\n"
    policy = Policy.parse({".debugignore": "link/\nreal/\n"})
    assert not policy.ignored("link")
    assert policy.ignored("real", True)
