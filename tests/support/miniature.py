"""Small package with a real git history and three bugs, and its rows in the exact schema of SWE-bench 5."""

import json
import os
import subprocess

SCRIPT = """#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff {base}
source /opt/miniconda3/bin/activate
conda activate testbed
git checkout {base} {files}
git apply -v - <<'EOF_114329324912'
{test_patch}
EOF_114329324912
: '>>>>> Start Test Output'
python -m pytest -rA -p no:cacheprovider {files}
: '>>>>> End Test Output'
git checkout {base} {files}
"""
MODULE = '''"""Amounts of money."""


def parse(text):
    """``"12.30"`` in cents."""
    whole, _, fraction = text.partition(".")
    return int(whole) * 100 + int({fraction})


def share(amount, people):
    """Cents for each; the first get what is left."""
    each, rest = divmod(amount, people)
    return [each + ({rest}) for number in range(people)]


def show(amount):
    """Cents as text."""
    return f"{{amount // 100}}.{{amount % 100{width}}}"
'''
WRONG = {"fraction": "fraction or 0", "rest": "0", "width": ""}
RIGHT = {"fraction": 'fraction.ljust(2, "0")', "rest": "1 if number < rest else 0", "width": ":02"}
TESTS = {
    "fraction": "@pytest.mark.parametrize('text', ['12.3', '12.30'])\n"
    "def test_parse(text):\n    assert money.parse(text) == 1230\n",
    "rest": "def test_share():\n    assert money.share(100, 3) == [34, 33, 33]\n",
    "width": "def test_show():\n    assert money.show(1205) == '12.05'\n",
}
NAMES = {"fraction": ["test_parse[12.3]"], "rest": ["test_share"], "width": ["test_show"]}
KEPT = "import pytest\n\nfrom coins import money\n\n\ndef test_whole():\n    assert money.parse('12.00') == 1200\n"
STATEMENTS = {
    "fraction": "Prices with one digit come out too low.",
    "rest": "Cents get lost when an amount is shared.",
    "width": "Five cents are shown as fifty.",
}


def git(root, *arguments):
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(root),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in IDENTITY.items()},
    }
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


IDENTITY = {"NAME": "Miniature", "EMAIL": "mini@example.com", "DATE": "2026-01-31T12:00:00Z"}


def make_repository(root):
    """Create ``root/mini__coins`` with a commit for each repair. Returns the rows."""
    repository = root / "mini__coins"
    (repository / "coins").mkdir(parents=True)
    (repository / "tests").mkdir()
    git(repository, "init", "-q", "-b", "main")
    values, tests = dict(WRONG), KEPT
    write(repository, values, tests)
    commit(repository, "Begin")
    rows = []
    for number, bug in enumerate(WRONG, start=1):
        base = git(repository, "rev-parse", "HEAD").strip()
        values[bug] = RIGHT[bug]
        tests += f"\n\n{TESTS[bug]}"
        write(repository, values, tests)
        commit(repository, f"Repair {bug}")
        rows.append(make_row(repository, base, number, bug))
    git(repository, "tag", "v2.0")
    git(repository, "branch", "future")
    return rows


def write(repository, values, tests):
    (repository / "coins" / "__init__.py").write_text("")
    (repository / "coins" / "money.py").write_text(MODULE.format(**values))
    (repository / "tests" / "test_money.py").write_text(tests)


def commit(repository, subject):
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", subject)


def make_row(repository, base, number, bug):
    patch = git(repository, "diff", base, "HEAD", "--", "coins")
    test_patch = git(repository, "diff", base, "HEAD", "--", "tests")
    file = "tests/test_money.py"
    earlier = list(NAMES)[: number - 1]
    kept = ["test_whole", "test_parse[12.30]", *(name for one in earlier for name in NAMES[one])]
    instance = f"mini__coins-{number}"
    return {
        "repo": "mini/coins",
        "instance_id": instance,
        "base_commit": base,
        "patch": patch,
        "test_patch": test_patch,
        "problem_statement": STATEMENTS[bug],
        "hints_text": "",
        "created_at": "2026-01-31T12:00:00Z",
        "version": "1.0",
        "FAIL_TO_PASS": json.dumps([f"{file}::{name}" for name in NAMES[bug]]),
        "PASS_TO_PASS": json.dumps([f"{file}::{name}" for name in kept]),
        "environment_setup_commit": base,
        "difficulty": "<15 min fix",
        "image": f"swebench/sweb.eval.x86_64.mini_1776_coins-{number}:latest",
        "eval_script": SCRIPT.format(base=base, files=file, test_patch=test_patch),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
