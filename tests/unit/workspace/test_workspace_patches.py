import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgym.errors import PatchError
from dgym.workspace.patches import FileVersion, apply_patch, patched_paths, unified_diff, write_patch
from dgym.workspace.patches._apply import apply_delta
from dgym.workspace.patches._write import quote_path, unquote_path

TREE = {
    "a.py": FileVersion(b"one\ntwo\nthree\n"),
    "bin": FileVersion(b"\0\1\2"),
    "link": FileVersion(b"a.py", 0o777, is_symlink=True),
    "empty": FileVersion(b""),
}


def applied(patch: str | bytes):
    return apply_patch(patch, TREE.get)


def test_a_patch_is_equal_to_that_of_git():
    new = FileVersion(b"one\n2\nthree\nfour", 0o755)
    assert write_patch({"a.py": (TREE["a.py"], new)}).decode() == (
        "diff --git a/a.py b/a.py\n"
        "old mode 100644\n"
        "new mode 100755\n"
        "index 4cb29ea38f70d7c61b2a3a25b02e3bdf44905402..3af4cb15e17bd9b1f3d4b26ae10e9a4c48a9e6bb\n"
        "--- a/a.py\n"
        "+++ b/a.py\n"
        "@@ -1,3 +1,4 @@\n"
        " one\n"
        "-two\n"
        "+2\n"
        " three\n"
        "+four\n"
        "\\ No newline at end of file\n"
    ).replace("3af4cb15e17bd9b1f3d4b26ae10e9a4c48a9e6bb", new.object_id)


def test_unchanged_files_are_not_in_a_patch():
    same = FileVersion(b"x", 0o600)
    assert write_patch({"a": (same, same), "b": (None, None), "c": (same, FileVersion(b"x", 0o644))}) == b""


def test_the_order_does_not_depend_on_the_mapping():
    one = {name: (None, FileVersion(name.encode())) for name in ("b", "a", "é", "a/b")}
    assert write_patch(one) == write_patch(dict(reversed(one.items())))


def test_adjacent_hunks_are_merged():
    old = [b"%d\n" % n for n in range(40)]
    for distance, hunks in ((7, 1), (8, 2)):
        new = list(old)
        new[10], new[10 + distance] = b"x\n", b"y\n"
        patch = write_patch({"f": (FileVersion(b"".join(old)), FileVersion(b"".join(new)))})
        assert patch.count(b"\n@@ ") == hunks


def test_a_large_file_is_compared_quickly():
    old = b"".join(b"line %d\n" % n for n in range(100_000))
    new = old.replace(b"line 50000\n", b"changed\n").replace(b"line 99\n", b"")
    patch = write_patch({"f": (FileVersion(old), FileVersion(new))})
    assert len(patch.splitlines()) < 30


def test_a_diff_for_reading():
    assert unified_diff("a b.py", b"x\n", b"y") == (
        '--- "a/a b.py"\n+++ "b/a b.py"\n@@ -1 +1 @@\n-x\n+y\n\\ No newline at end of file\n'
    )
    assert unified_diff("a", b"x\n", b"x\n") == ""
    assert "encoding changed" in unified_diff("a", b"\xef\xbb\xbfx\n", b"x\n")
    assert "+\u00e9" in unified_diff("a", b"# coding: latin-1\n", b"# coding: latin-1\n\xe9\n")


@given(st.binary(max_size=30).filter(lambda raw: b"\0" not in raw))
def test_quoted_paths_are_read_back(raw):
    path = raw.decode("utf-8", "surrogateescape")
    quoted = quote_path(path, "a/")
    assert quoted.isascii()
    if quoted.startswith(b'"'):
        assert unquote_path(quoted + b" rest") == (f"a/{path}", b" rest")
    else:
        assert quoted == b"a/" + raw


GIT = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n"


@pytest.mark.parametrize(
    "patch",
    [
        GIT + "@@ -2 +2 @@\n-two\n+2\n",
        "--- a/a.py\t2020-01-01 00:00:00\n+++ b/a.py\t2020-01-02\n@@ -2 +2 @@ def f():\n-two\n+2\n",
        "A sentence before.\n\n--- a note\n" + GIT + "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n-- \n2.39\n",
        "Index: a.py\n=====\n--- i/a.py\n+++ w/a.py\n@@ -2,1 +2,1 @@\n-two\n+2",
    ],
)
def test_different_forms_of_one_change(patch):
    assert applied(patch) == {"a.py": FileVersion(b"one\n2\nthree\n")}


def test_blank_context_lines_may_have_lost_their_blank():
    tree = {"f": FileVersion(b"a\n\nb\n")}
    patch = "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n"
    assert apply_patch(patch, tree.get) == {"f": FileVersion(b"a\n\nc\n")}


def test_an_empty_patch_changes_nothing():
    assert applied("") == applied("\n\n") == {}


def test_mode_and_kind_are_kept_unless_the_patch_changes_them():
    tree = {"run": FileVersion(b"a\n", 0o755), "link": FileVersion(b"a", 0o777, is_symlink=True)}
    result = apply_patch(
        "--- a/run\n+++ b/run\n@@ -1 +1 @@\n-a\n+b\n"
        "--- a/link\n+++ b/link\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n",
        tree.get,
    )
    assert result == {"run": FileVersion(b"b\n", 0o755), "link": FileVersion(b"b", 0o777, is_symlink=True)}
    result = apply_patch("diff --git a/run b/run\nold mode 100755\nnew mode 100644\n", tree.get)
    assert result == {"run": FileVersion(b"a\n", 0o644)}


def test_paths_of_a_patch():
    patch = (
        "diff --git a/a.py b/c\nsimilarity index 100%\nrename from a.py\nrename to c\n"
        + GIT.replace("a.py", "d")
        + ("@@ -0,0 +1 @@\n+x\n")
    )
    assert patched_paths(patch) == ["a.py", "c", "d"]


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("no patch at all\n", "so it is not a patch"),
        ("@@ -1 +1 @@\n-a\n+b\n", "line 1 of the patch: a hunk without a file header"),
        (GIT + "@@ -2 +2 @@\n-zwei\n+2\n", r"a\.py: hunk 1: line 4 of the patch: line 2 of the file is 'two\\n', not"),
        (GIT + "@@ -1 +1 @@\n-two\n+2\n", "not at line 1 but at line 2"),
        (GIT + "@@ -3,2 +3,1 @@\n three\n-four\n", "needs line 4, but the file has 3 lines"),
        (GIT + "@@ -2,2 +2,2 @@\n-two\n+2\n", "hunk 1: line 7 of the patch: the patch ends within the hunk"),
        (GIT + "@@ -2,2 +2,2 @@\n-two\n+2\n!\n", "fewer lines than it announces"),
        (GIT + "@@ -2 +2 @@\n-two\n+2\n+3\n", "line 7 of the patch: this line is not part of a hunk"),
        (GIT + "@@ -2 +2 @@\n-two\n-three\n+2\n", "more lines than it announces"),
        (GIT + "@@ -3 +3 @@\n-three\n+3\n@@ -2 +2 @@\n-two\n+2\n", "hunk 2.*before the hunk above"),
        (GIT + "@@ -2 +2 @@\n-two\n+2\n\\ No newline at end of file\n", "would not be the last"),
        (GIT + "@@ -a +2 @@\n-two\n", "not a hunk header"),
        (GIT + f"@@ -{'1' * 5000} +2 @@\n-two\n", "not a hunk header"),
        (GIT + "@@ -0 +1 @@\n-two\n+2\n", "lines count from 1"),
        (GIT + "@@ -1,0 +1,0 @@\n\\ No newline at end of file\n", "no line precedes"),
        (GIT, "without a hunk"),
        ("--- a/a.py\n+++ b/a.py\n", "no hunk"),
        ("--- /dev/null\n+++ /dev/null\n@@ -0,0 +1 @@\n+x\n", "both names"),
        ("diff --git a/a.py b/b.py\n", "does not name one file"),
        (GIT.replace("+++ b/a.py", "+++ b/b.py") + "@@ -2 +2 @@\n-two\n+2\n", "contradict"),
        ("--- a/none\n+++ b/none\n@@ -1 +1 @@\n-a\n+b\n", "line 1 of the patch: the file to change does not exist"),
        ("--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+x\n", "exists already"),
        ("--- a/a.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n", "lines that the deletion does not remove"),
        ("--- /dev/null\n+++ b/../up\n@@ -0,0 +1 @@\n+x\n", "leaves the repository"),
        ("--- /dev/null\n+++ b//etc/x\n@@ -0,0 +1 @@\n+x\n", "leaves the repository"),
        ("--- /dev/null\n+++ b/.git/hooks/x\n@@ -0,0 +1 @@\n+x\n", "cannot be patched"),
        ("--- /dev/null\n+++ b/a/.GIT/hooks/x\n@@ -0,0 +1 @@\n+x\n", "cannot be patched"),
        ("--- /dev/null\n+++ x\n@@ -0,0 +1 @@\n+x\n", "does not begin with a/ or b/"),
        ("--- /dev/null\n+++ b/link/x\n@@ -0,0 +1 @@\n+x\n", "link is a symbolic link"),
        ("--- /dev/null\n+++ b/a.py/x\n@@ -0,0 +1 @@\n+x\n", r"a\.py is a file"),
        ("--- /dev/null\n+++ b/nul\0\n@@ -0,0 +1 @@\n+x\n", "NUL"),
        ('--- /dev/null\n+++ "b/open\n@@ -0,0 +1 @@\n+x\n', "not closed"),
        ('--- /dev/null\n+++ "b/\\q"\n@@ -0,0 +1 @@\n+x\n', "unknown escape"),
        ('--- /dev/null\n+++ "b/\\401"\n@@ -0,0 +1 @@\n+x\n', "unknown escape"),
        ('--- /dev/null\n+++ "b/x" y\n@@ -0,0 +1 @@\n+x\n', "follows the path"),
        ("diff --git a/bin b/bin\nindex 1..2 100644\nBinary files a/bin and b/bin differ\n", "git diff --binary"),
        ("diff --git a/bin b/bin\nindex 1..2 100644\nGIT binary patch\nnonsense\n", "'literal' or 'delta'"),
        ("diff --git a/bin b/bin\nindex 1..2 100644\nGIT binary patch\nliteral 3\n~~~\n", "not a line of binary data"),
        ("diff --git a/bin b/bin\nGIT binary patch\nliteral 3\nBdamag\n\n", "damaged"),
        ("diff --git a/bin b/bin\nGIT binary patch\nliteral 999999999999\n\n", "more than"),
        (f"diff --git a/bin b/bin\nGIT binary patch\nliteral {'9' * 5000}\n\n", "'literal' or 'delta'"),
        ("diff --git a/x b/x\nnew file mode 160000\n", "neither a file's nor"),
        ("diff --git a/x b/y\nsimilarity index 100%\nrename from x\n", "needs both names"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n", "does not exist"),
    ],
)
def test_refusals_name_the_place(patch, message):
    with pytest.raises(PatchError, match=message):
        applied(patch)


def test_a_binary_patch_belongs_to_one_original():
    patch = write_patch({"bin": (TREE["bin"], FileVersion(b"\0new"))})
    assert applied(patch) == {"bin": FileVersion(b"\0new")}
    with pytest.raises(PatchError, match="differs from the file that the patch was made from"):
        apply_patch(patch, {"bin": FileVersion(b"\0other")}.get)
    forged = re.sub(rb"\.\.[0-9a-f]{40}", b".." + b"1" * 40, patch)
    with pytest.raises(PatchError, match="differs from the announced result"):
        applied(forged)


def test_a_patch_with_lone_surrogates_is_refused():
    with pytest.raises(PatchError, match="is not text"):
        applied("\ud800")


GOOD = write_patch(
    {
        "a.py": (TREE["a.py"], FileVersion(b"one\n2\nthree", 0o755)),
        "bin": (TREE["bin"], FileVersion(b"\0" * 100)),
        "new file": (None, FileVersion(b"x\n")),
        "empty": (TREE["empty"], None),
    }
)


@settings(max_examples=4 * settings().max_examples)
@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 6), st.binary(max_size=4)), max_size=4))
def test_a_damaged_patch_is_refused_or_applied_and_nothing_else(damages):
    patch = GOOD
    for at, length, piece in damages:
        patch = patch[:at] + piece + patch[at + length :]
    try:
        result = applied(patch)
    except PatchError:
        return
    assert not any(".." in path.split("/") or path.startswith("/") for path in result)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_a_damaged_delta_is_refused(base, delta):
    with contextlib.suppress(ValueError):
        assert len(apply_delta(base, delta)) <= 256 * 1024**2


def test_a_delta_copies_and_inserts():
    assert apply_delta(b"hello world", bytes([11, 8, 0x91, 6, 5, 3]) + b"abc") == b"worldabc"
    with pytest.raises(ValueError, match="not of 3"):
        apply_delta(b"abc", bytes([11, 8]))
    with pytest.raises(ValueError, match="requests"):
        apply_delta(b"", bytes([0, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]))
