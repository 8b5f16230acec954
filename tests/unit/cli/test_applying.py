import stat

import pytest

from dgym.cli.run import write_patch
from dgym.errors import DgymError
from tests.support.calc import BUGGY

PATCH = b"""\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
diff --git a/notes/new.txt b/notes/new.txt
new file mode 100755
--- /dev/null
+++ b/notes/new.txt
@@ -0,0 +1 @@
+hello
diff --git a/old.txt b/old.txt
deleted file mode 100644
--- a/old.txt
+++ /dev/null
@@ -1 +0,0 @@
-old
"""


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "repository"
    root.mkdir()
    (root / "calc.py").write_text(BUGGY)
    (root / "calc.py").chmod(0o640)
    (root / "old.txt").write_text("old\n")
    return root


def test_files_are_changed_made_and_removed(root):
    assert write_patch(root, PATCH) == ["calc.py", "notes/new.txt", "old.txt"]
    assert "a + b" in (root / "calc.py").read_text()
    assert stat.S_IMODE((root / "calc.py").stat().st_mode) == 0o640
    assert (root / "notes/new.txt").stat().st_mode & stat.S_IXUSR
    assert sorted(path.name for path in root.iterdir()) == ["calc.py", "notes"]


def test_a_patch_that_does_not_fit_any_more_changes_nothing(root):
    (root / "old.txt").write_text("changed meanwhile\n")
    with pytest.raises(DgymError, match=r"old\.txt"):
        write_patch(root, PATCH)
    assert "a - b" in (root / "calc.py").read_text()


def test_files_are_not_written_through_a_link_out_of_the_repository(root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (root / "notes").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DgymError, match=r"leads out of the repository|symbolic link"):
        write_patch(root, PATCH)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert "a - b" in (root / "calc.py").read_text()
