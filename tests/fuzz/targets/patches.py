"""Target for untrusted patches: invalid patches raise ``PatchError``, valid ones can be written and read again."""

import contextlib

from hypothesis import strategies as st

from dgym.errors import PatchError
from dgym.workspace.patches import FileVersion, apply_patch, patched_paths, unified_diff, write_patch
from dgym.workspace.patches._apply import apply_delta
from tests.fuzz.engine import Target
from tests.fuzz.mutation import mutated

_TREE = {
    "a.py": FileVersion(b"one\ntwo\nthree\nfour\nfive\nsix\n"),
    "d/b.py": FileVersion(b"b\n"),
    "bin": FileVersion(b"\0\1\2" * 100),
    "link": FileVersion(b"a.py", 0o777, is_symlink=True),
    "empty": FileVersion(b""),
}
_CHANGED: dict[str, tuple[FileVersion | None, FileVersion | None]] = {
    "a.py": (_TREE["a.py"], FileVersion(b"one\n2\nthree\nfour\nfive\nsix", 0o755)),
    "bin": (_TREE["bin"], FileVersion(b"\0\1\3" * 200)),
    "d/b.py": (_TREE["d/b.py"], None),
    "new ä\t.txt": (None, FileVersion(b"new\n")),
    "link2": (None, FileVersion(b"../x", 0o777, is_symlink=True)),
}
_RENAME = (
    b"diff --git a/a.py b/c.py\nsimilarity index 90%\nrename from a.py\nrename to c.py\nindex 1..2 100644\n"
    b"--- a/a.py\n+++ b/c.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
)
_PLAIN = b"--- a.py\t2020-01-01\n+++ a.py\t2020-01-02\n@@ -2 +2,2 @@\n-two\n+2\n+2.5\n\\ No newline at end of file\n"
_EXAMPLES = [write_patch({path: versions}) for path, versions in _CHANGED.items()]
_EXAMPLES += [write_patch(_CHANGED), _RENAME, _PLAIN, _RENAME.replace(b"rename", b"copy")]
_PIECES = (
    *(b"diff --git a/a.py b/a.py\n", b"--- /dev/null\n", b"+++ b/../../x\n", b"@@ -1,9 +1 @@\n", b"GIT binary patch\n"),
    *(
        b"literal 99999999999\n",
        b"delta 5\n",
        b"zcmZ?wbhEHb\n",
        b"new file mode 120000\n",
        b"old mode 100644\n",
        b'"a/\\303\\244"',
    ),
    *(
        b"deleted file mode 100644\n",
        b"index 0000000..1111111\n",
        b"@@ -0,0 +1,99999999999999999999 @@\n",
        b"rename from ",
    ),
)
_DELTAS = st.binary(max_size=40) | mutated([b"\xac\x02\xac\x02\x91\x00\x10\x03abc", b"\xac\x02\x05\x90\x05"])
_INPUTS = st.tuples(mutated(_EXAMPLES, _PIECES), _DELTAS, st.text(max_size=30), st.text(max_size=30))


def check(value: tuple[bytes, bytes, str, str]) -> None:
    """Apply a patch to a small tree and write the changes as a patch, which must lead to the same tree."""
    patch, delta, old, new = value
    with contextlib.suppress(ValueError):
        apply_delta(_TREE["bin"].data, delta)
    with contextlib.suppress(PatchError):
        patched_paths(patch.decode("utf-8", "surrogateescape"))
        after = apply_patch(patch, _TREE.get)
        again = write_patch({path: (_TREE.get(path), version) for path, version in after.items()})
        changed = {path: version for path, version in after.items() if version != _TREE.get(path)}
        assert _without_modes(apply_patch(again, _TREE.get)) == _without_modes(changed), again
    unified_diff("a.py", old.encode("utf-8", "surrogatepass"), new.encode("utf-8", "surrogatepass"))


def _without_modes(versions: dict[str, FileVersion | None]) -> dict[str, tuple[bytes, str] | None]:
    """The changed versions with git's mode, which keeps only the executable bit of the permissions."""
    kept = {path: version and (version.data, version.git_mode) for path, version in versions.items()}
    before = {path: (version.data, version.git_mode) for path, version in _TREE.items()}
    return {path: version for path, version in kept.items() if version != before.get(path)}


TARGET = Target("patches", _INPUTS, check)
