"""Policy files mean what the same lines mean to git in a ``.gitignore``, but for what docs/writing-a-task.md lists."""

import re
import shutil
import tempfile
from collections.abc import Iterable
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
DOCUMENTED = re.compile(
    r"\[[^]]*[\[\\/]"  # classes that only git reads, …
    r"|c-a"  # … a range that runs backwards …
    r"|[?]|\[[!^]"  # … and what matches a byte in git, a character here
    r"|[\t\r ]+(?:/|$)"  # white space at the end of a name
    r"|[^*/]\*\*+/"  # a double star beside other characters
    r"|\*[^/]*\*[^/]*\*[^/]*\*|\*\*.*\*\*.*\*\*"  # more stars than are tried
)
"""Where git and policy files differ; each kind has an example in ``DIFFERENCES``."""

lines = st.builds(
    lambda bang, pieces: bang + "".join(pieces),
    st.sampled_from(("", "", "", "!")),
    st.lists(st.sampled_from(PIECES), max_size=6),
).filter(lambda line: DOCUMENTED.search(line) is None)
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
@example(root_text="/*\n!/b\n/b/*\n!/b/ab\n", deeper={}, extra=[])
@example(root_text="b/[^a]b\n[a-c]b\n", deeper={}, extra=[])
@example(root_text="*\n!*/\n!*.py\n", deeper={}, extra=[])
@example(root_text="*.py\n!/b/\n", deeper={"b": "!/ab/\n"}, extra=["b/ab/a.py"])
@example(root_text="\ufeffa\n", deeper={}, extra=[])
@example(root_text="a\\ \na  \n", deeper={}, extra=[])
@example(root_text="**/a\n!?\n", deeper={}, extra=["new\nline/a", "new\nline/b"])
@example(root_text="a\0b\n", deeper={}, extra=[])
@example(root_text="**//\n//a\nb//a\n/**//ab//\n", deeper={}, extra=[])
def test_policy_agrees_with_git(root_text, deeper, extra, git, scratch):
    root = scratch()
    files = {".gitignore": root_text, **{f"{directory}/.gitignore": text for directory, text in deeper.items()}}
    entries = make_tree(root, files, [*EVERY_PATH, *extra])
    present = {path: (root / path).read_bytes().decode("utf-8") for path in files if (root / path).is_file()}
    policy = Policy.parse({path.replace(".gitignore", ".debugignore"): text for path, text in present.items()})
    ours = {path for path, is_dir in entries.items() if policy.ignored(path, is_dir)}
    assert ours == ignored_by_git(git, root, entries)


def ignored_by_git(git, root: Path, entries: Iterable[str]) -> set[str]:
    git(root, "init", "-q")
    listing = "\0".join(entries).encode("utf-8", "surrogateescape")
    answer = git(root, "check-ignore", "--no-index", "-z", "--stdin", stdin=listing, check=False).stdout
    return set(answer.decode("utf-8", "surrogateescape").split("\0")) - {""}


DIFFERENCES = [
    ("a[[:digit:]]", "a1", True),
    ("a[/1]", "a1", True),
    ("a[\\]]", "a]", True),
    ("[c-a]", "c", True),
    ("a*b*c*d*e", "abcde", True),
    ("**/a/**/b/**/c", "a/b/c", True),
    ("a?", "aé", False),
    ("a[!x]b", "a/b", False),
    ("a\t", "a", False),
    ("/b/a**/c", "b/ax/y/c", True),
]


@pytest.mark.parametrize(("line", "path", "in_git"), DIFFERENCES)
def test_what_differs_from_git(line, path, in_git, git, scratch):
    root = scratch()
    make_tree(root, {".gitignore": line + "\n"}, [path])
    assert (ignored_by_git(git, root, [path]) == {path}) is in_git
    assert Policy.parse({".debugignore": line + "\n"}).ignored(path) is not in_git


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
