"""Tests that policy files match the same paths as git does with the same lines in a ``.gitignore``."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgym.workspace import Policy, ancestors

CASES = int(os.environ.get("DGYM_GITIGNORE_CASES") or 10 * settings().max_examples)
CASES_OF_A_BATCH = 40
"""One git process checks a batch of cases. Each case has a separate directory below the root of the repository."""

PIECES = (
    *("\n", "\n", "\n!", "\n!/", "\n/", "\r\n", "\n#", "/\n", " \n", "\\ \n", "\t\n", "\\\n", "\n!*\n", "\n/*\n"),
    *("a", "b", "ab", "c", "é", "é"[:1], ".", "py", " ", "\t", "#", "!", "-", "A", "\\", "\\\\", "\\a", "\\*", "\\ "),
    *("\\#", "\\!", "\\/", "\0", "\r", "\udcff", "\ufeff"),
    *("*", "*", "*", "**", "***", "?", "/", "/", "/", "//", "**/", "/**", "/**/", "**/**/", "*.py", "a/b", "b/*"),
    *("[", "]", "[ab]", "[!a]", "[^a]", "[a-c]", "[]]", "[]-a]", "[a-]", "[--a]", "[a\\-c]", "[[:alpha:]]", "[^]b]"),
    *("[[:space:]b]", "[[:nope:]]", "[[:alpha:]", "[[:]", "[[::]]", "[c-a]", "[\\]]", "[a/]", "[!x/]", "[[x]", "[\\"),
    *("[[:upper:]-z]", "[[-b]", "[a-\\c]", "[\udcc3-\udcff]", "[!é]"),
)
NAMES = (
    *("a", "b", "ab", "abc", "a b", "é", "[x]", "!a", "#a", "a]", "B", ".py", "a.py", "a\\b", "-", "a ", "\ta", "a\t"),
    *("new\nline", "\udcff", "a\r", "c", "\\", "*", "..a"),
)
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)


class Case(NamedTuple):
    """The ignore files at the root, in ``a`` and in ``b/ab``, and more paths to compare."""

    root: str
    deeper: str = ""
    deepest: str = ""
    files: tuple[str, ...] = ()


FILES = (
    *("a/a", "b/a", "b/ab/a", "b/ab/abc", "b/ab/c/a.py", "a b", "B/é", "é", "ab/a.py", "ab/.py", "[x]/a", "!a", "#a"),
    *("abc/a]", "abc/b/c/a", "a\\b", "-", "a ", "\ta", "ab/new\nline", "abc/b/a b/a", "b/ax/y/c", "a/\udcff", "a\t"),
)
EXAMPLES = [
    Case("/*\n!/src/\n", files=("src/calc.py", "other/calc.py", "setup.py")),
    Case("*\n!/src/\n!/src/**\n", files=("src/calc.py", "src/deep/er.py")),
    Case("/*\n!/src\n/src/*\n!/src/pkg/\n", files=("src/pkg/a.py", "src/other/a.py")),
    Case("*\n!*/\n!*.py\n", files=("src/calc.py", "src/calc.txt")),
    Case("secret/\n!secret/keep.py\n", files=("secret/keep.py", "other/secret/x")),
    Case("*.py\n!/b/\n", "!a.py\n", "!/c/\n"),
    Case("a\\ \na  \n\\#a\n\\!a\n a\n"),
    Case("a*b*c*d*e\n**/a/**/b/**/c\n", files=("a/b/c", "abcde", "a/x/b/y/z/c")),
    Case("/b/a**/c\nx/**\\/y\n", files=("b/ax/y/c", "b/a/c", "x/1/2/y", "x/y")),
    Case("a[[:digit:]]\na[/1]\na[\\]]\nx[!y]z\n", files=("a1", "a/1", "a]", "x/z", "xéz")),
    Case("!\n/\n//\n**//\nb//a\n\\\n[\n./a\n../a\n"),
    Case("\ufeffa\n", "\ufeff!a\n"),
    Case("*\n!foo/\n!foo/bar.py", files=("foo/bar.py", "foo/baz.py")),
]


def write(root: Path, case: Case) -> dict[str, bool]:
    """Write the ignore files. Return the paths to compare, each with True if it is a directory.

    For git, the directories must exist, but the files need not exist.
    """
    judged = set()
    for path in (*FILES, *case.files):
        directory = path.rpartition("/")[0]
        (root / directory).mkdir(parents=True, exist_ok=True)
        judged.update({path, *ancestors(path)})
    for path, text in ignore_files(case).items():
        (root / path).write_bytes(text.encode("utf-8", "surrogateescape"))
    return {path: (root / path).is_dir() for path in judged}


def ignore_files(case: Case) -> dict[str, str]:
    return {".gitignore": case.root, "a/.gitignore": case.deeper, "b/ab/.gitignore": case.deepest}


def ignored_by_git(git, root: Path, judged: list[str]) -> set[str]:
    listing = "\0".join(judged).encode("utf-8", "surrogateescape")
    answer = git(root, "check-ignore", "--no-index", "-z", "--stdin", stdin=listing, check=False)
    assert answer.returncode in (0, 1), answer.stderr
    return set(answer.stdout.decode("utf-8", "surrogateescape").split("\0")) - {""}


def compare(git, root: Path, cases: list[Case]) -> None:
    judged = [write(root / f"case{number}", case) for number, case in enumerate(cases)]
    wanted = ignored_by_git(git, root, [f"case{number}/{path}" for number, some in enumerate(judged) for path in some])
    for number, case in enumerate(cases):
        name = (".gitignore", ".debugignore", ".debugreadonly")[number % 3]
        prefix = f"case{number}/" if number % 2 else ""
        files = {prefix + path.replace(".gitignore", name): text for path, text in ignore_files(case).items()}
        excludes = question(Policy.parse(files), name)
        ours = {path for path, is_dir in judged[number].items() if excludes(prefix + path, is_dir)}
        assert ours == {path for path in judged[number] if f"case{number}/{path}" in wanted}, (case, name, prefix)


def question(policy: Policy, name: str) -> Callable[[str, bool], bool]:
    if name == ".gitignore":
        return policy.excluded_from_patch
    return policy.ignored if name == ".debugignore" else policy.read_only


@pytest.fixture(scope="module")
def tree(git, tmp_path_factory):
    """A repository that all batches share, because the creation of directories takes more time than git."""
    root = tmp_path_factory.mktemp("tree")
    git(root, "init", "-q")
    return root


@pytest.mark.parametrize("case", EXAMPLES)
def test_common_rules_match_the_same_paths_as_in_git(case, git, tree):
    compare(git, tree, [case] * 6)


@settings(
    max_examples=-(-CASES // CASES_OF_A_BATCH),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.large_base_example],
)
@given(
    st.lists(
        st.builds(Case, texts, texts, texts, st.lists(paths, max_size=4).map(tuple)),
        min_size=CASES_OF_A_BATCH,
        max_size=CASES_OF_A_BATCH,
    )
)
def test_generated_rules_match_the_same_paths_as_in_git(git, tree, cases):
    compare(git, tree, cases)


def test_every_byte_is_in_the_classes_in_which_git_has_it(git, tmp_path):
    names = ("alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct")
    names += ("space", "upper", "xdigit")
    characters = [bytes([byte]).decode("utf-8", "surrogateescape") for byte in range(1, 256) if byte != ord("/")]
    files = [f"{name}/x{character}" for name in names for character in characters]
    text = "".join(f"/{name}/?[[:{name}:]]\n" for name in names)
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text(text)
    policy = Policy.parse({".gitignore": text})
    ours = {path for path in files if policy.excluded_from_patch(path)}
    assert ours == ignored_by_git(git, tmp_path, files)


def test_a_link_to_a_directory_does_not_match_a_directory_pattern(git, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / ".gitignore").write_text("link/\nreal/\n")
    git(tmp_path, "init", "-q")
    assert ignored_by_git(git, tmp_path, ["link", "real"]) == {"real"}
    policy = Policy.parse({".debugignore": "link/\nreal/\n"})
    assert not policy.ignored("link")
    assert policy.ignored("real", True)
