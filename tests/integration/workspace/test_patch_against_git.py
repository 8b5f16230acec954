"""Tests that git accepts every patch of dgym, and that dgym accepts every patch of git."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dgym.workspace.patches import FileVersion, apply_patch, patched_paths, write_patch

Tree = dict[str, FileVersion]

LINES = (
    "a\n",
    "b\n",
    "c\n",
    "\n",
    "a\r\n",
    "x\fy\n",
    "\u2028z\n",
    "é\n",
    "+\n",
    "-- \n",
    "--- a/a\n",
    "\\ n\n",
    "@@ -1 +1 @@\n",
)
TAILS = ("", "", "end", "end\r", "no\u2028newline", "\\", "-- ")
PARTS = ("a", "b", "c d", "é", 'q"uote', "tab\there", "back\\slash", "\udcff", "b ", " x", "new\nline", "x.py")
TARGETS = ("../a", "no such", "x/é", "\udcfe")

texts = st.builds(
    lambda lines, tail: ("".join(lines) + tail).encode(),
    st.lists(st.sampled_from(LINES), max_size=30),
    st.sampled_from(TAILS),
)
binaries = st.one_of(
    st.binary(max_size=200), st.binary(min_size=1, max_size=40).map(lambda data: data * 50 + b"\0\xff")
)
paths = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map("/".join)
modes = st.sampled_from((0o644, 0o755))
files = st.one_of(
    st.builds(FileVersion, texts, modes),
    st.builds(FileVersion, binaries, modes),
    st.sampled_from(TARGETS).map(lambda target: FileVersion(os.fsencode(target), 0o777, is_symlink=True)),
)


def without_clashes(tree: Tree) -> Tree:
    """Remove the paths that lie below a file."""
    return {path: version for path, version in tree.items() if not any(path.startswith(other + "/") for other in tree)}


trees = st.dictionaries(paths, files, max_size=5).map(without_clashes)


@st.composite
def tree_pairs(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """A tree before and after changes: some files are unchanged, edited, moved, deleted or new."""
    before = draw(trees)
    after = dict(draw(trees))
    for path, version in before.items():
        fate = draw(st.sampled_from(("keep", "edit", "mode", "drop", "move", "copy", "replace")))
        if fate in ("keep", "copy"):
            after[path] = version
        if fate in ("move", "copy"):
            after[draw(paths)] = version
        elif fate == "edit" and not version.is_symlink:
            at = draw(st.integers(0, len(version.data)))
            piece = draw(st.sampled_from((b"", b"new\n", b"\n", b"\xff", b"\r\n")))
            after[path] = FileVersion(version.data[:at] + piece + version.data[at + 1 :], version.mode)
        elif fate == "mode" and not version.is_symlink:
            after[path] = FileVersion(version.data, version.mode ^ 0o111)
    return before, without_clashes(after)


def write_tree(root: Path, tree: Tree) -> None:
    for path, version in tree.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if version.is_symlink:
            file.symlink_to(os.fsdecode(version.data))
        else:
            file.write_bytes(version.data)
            file.chmod(version.mode)


def read_tree(root: Path) -> dict[str, tuple[bytes, str]]:
    found = {}
    for directory, subdirectories, names in os.walk(root):
        if ".git" in subdirectories:
            subdirectories.remove(".git")
        links = [name for name in subdirectories if (Path(directory) / name).is_symlink()]
        for name in (*names, *links):
            file = Path(directory) / name
            if file.is_symlink():
                found[str(file.relative_to(root))] = (os.fsencode(file.readlink()), "120000")
            else:
                mode = "100755" if file.stat().st_mode & 0o100 else "100644"
                found[str(file.relative_to(root))] = (file.read_bytes(), mode)
    return found


def facts(tree: Tree) -> dict[str, tuple[bytes, str]]:
    return {path: (version.data, version.git_mode) for path, version in tree.items()}


def patch_between(before: Tree, after: Tree) -> bytes:
    return write_patch({path: (before.get(path), after.get(path)) for path in before.keys() | after.keys()})


def applied(before: Tree, patch: bytes | str) -> Tree:
    result = {**before, **apply_patch(patch, before.get)}
    return {path: version for path, version in result.items() if version is not None}


@pytest.fixture
def scratch():
    """A function that returns a new directory on each call, so that examples of one test do not share a directory."""
    made: list[str] = []

    def make() -> Path:
        made.append(tempfile.mkdtemp())
        return Path(made[-1])

    yield make
    for directory in made:
        shutil.rmtree(directory)


SLOW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@SLOW
@given(pair=tree_pairs(), in_repository=st.booleans())
@example(pair=({}, {"empty": FileVersion(b"")}), in_repository=False)
@example(pair=({"d/f": FileVersion(b"x\n")}, {"d": FileVersion(b"d/f", 0o777, is_symlink=True)}), in_repository=True)
@example(pair=({"d": FileVersion(b"x\n")}, {"d/f": FileVersion(b"x\n")}), in_repository=False)
@example(pair=({"d": FileVersion(b"e", 0o777, is_symlink=True)}, {"d/f": FileVersion(b"x\n")}), in_repository=True)
def test_git_applies_what_we_write(pair, in_repository, git, scratch):
    before, after = pair
    root = scratch()
    write_tree(root, before)
    if in_repository:
        git(root, "init", "-q")
        git(root, "add", "-A")
    patch = patch_between(before, after)
    patch.decode("utf-8")
    if patch:
        git(root, "apply", "--whitespace=nowarn", "-", stdin=patch)
    assert read_tree(root) == facts(after)


@SLOW
@given(pair=tree_pairs())
def test_git_takes_our_patch_back(pair, git, scratch):
    before, after = pair
    root = scratch()
    write_tree(root, after)
    patch = patch_between(before, after)
    if patch:
        git(root, "apply", "-R", "--whitespace=nowarn", "-", stdin=patch)
    assert read_tree(root) == facts(before)


@settings(max_examples=3 * settings().max_examples)
@given(pair=tree_pairs())
def test_we_apply_what_we_write(pair):
    before, after = pair
    patch = patch_between(before, after)
    assert facts(applied(before, patch)) == facts(after)
    assert facts(applied(before, patch.decode())) == facts(after)


@SLOW
@given(
    pair=tree_pairs(),
    options=st.lists(st.sampled_from(("-M", "-C", "--find-copies-harder", "-U0", "-U1", "--full-index", "--minimal"))),
)
def test_we_apply_what_git_writes(pair, options, git, scratch):
    before, after = pair
    root = scratch()
    git(root, "init", "-q")
    write_tree(root, before)
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", "before")
    for path in before:
        (root / path).unlink()
    for directory in sorted(root.rglob("*"), reverse=True):
        if directory.is_dir() and ".git" not in directory.parts and not any(directory.iterdir()):
            directory.rmdir()
    write_tree(root, after)
    git(root, "add", "-A")
    patch = git(root, "diff", "--binary", "--cached", *options, "HEAD").stdout
    assert facts(applied(before, patch)) == facts(after)
    assert set(patched_paths(patch)) >= before.keys() ^ after.keys()


def test_git_swaps_two_files_by_renames(git, scratch):
    root = scratch()
    before = {name: FileVersion("".join(f"{name}{n}\n" for n in range(200)).encode()) for name in ("a", "b")}
    after = {"a": before["b"], "b": before["a"]}
    git(root, "init", "-q")
    write_tree(root, before)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "before")
    write_tree(root, after)
    patch = git(root, "diff", "-B", "-M", "HEAD").stdout
    assert b"rename from" in patch
    assert facts(applied(before, patch)) == facts(after)


def test_a_delta_of_git_is_expanded(git, scratch):
    root = scratch()
    old = bytes(range(256)) * 400
    before = {"data.bin": FileVersion(old)}
    after = {"data.bin": FileVersion(old[:5000] + b"\xff\xfe inserted" + old[5100:])}
    git(root, "init", "-q")
    write_tree(root, before)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "before")
    write_tree(root, after)
    patch = git(root, "diff", "--binary").stdout
    assert b"\ndelta " in patch
    assert facts(applied(before, patch)) == facts(after)


def test_format_patch_mail_is_applied(git, scratch):
    root = scratch()
    before = {"a.txt": FileVersion(b"one\ntwo\n")}
    after = {"a.txt": FileVersion(b"one\n2\n"), "b.txt": FileVersion(b"-- \n")}
    git(root, "init", "-q")
    write_tree(root, before)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "before")
    write_tree(root, after)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "change two lines\n\n--- a note\n")
    patch = git(root, "format-patch", "--stdout", "-1").stdout
    assert facts(applied(before, patch)) == facts(after)
