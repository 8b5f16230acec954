from dgym.agents.solution import changed_lines

PATCH = """\
diff --git a/README.md b/README.md
--- a/README.md
+++ b/README.md
@@ -1,2 +1,2 @@
-old words
+new words
diff --git a/pkg/calc.py b/pkg/calc.py
--- a/pkg/calc.py
+++ b/pkg/calc.py
@@ -10,5 +10,6 @@ def add(a, b):
     # sums
     total = a
-    total -= b
+    total += b
+    check(total)

     return total
diff --git a/new.py b/new.py
new file mode 100644
--- /dev/null
+++ b/new.py
@@ -0,0 +1 @@
+x = 1
"""


def test_removed_lines_precede_context_lines():
    assert list(changed_lines(PATCH)) == ["pkg/calc.py:12", "pkg/calc.py:11", "pkg/calc.py:14"]


def test_a_patch_without_python_has_none():
    assert list(changed_lines("--- a/x.txt\n+++ b/x.txt\n@@ -1 +1 @@\n-a\n+b\n")) == []
    assert list(changed_lines("")) == []
