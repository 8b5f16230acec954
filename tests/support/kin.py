"""Small versions of other benchmarks in their schemas, mostly with the package of ``tests.support.miniature``."""

import json
import re

FILE = "tests/test_money.py"
LIVE_PARSER = """
def parser(log: str) -> dict[str, str]:
    return dict(line.split() for line in log.splitlines() if len(line.split()) == 2)
"""


def smith_rows(rows):
    """Rows of SWE-smith, where the repository is correct and a patch adds the bug: here the reverse of the repair."""
    from dgym.benchmarks.datasets.swesmith import reverse_patch

    return [
        {
            "instance_id": f"{row['instance_id']}.abcdef12.func__1",
            "repo": "swesmith/mini__coins.abcdef12",
            "patch": reverse_patch(row["patch"]),
            "FAIL_TO_PASS": json.loads(row["FAIL_TO_PASS"]),
            "PASS_TO_PASS": json.loads(row["PASS_TO_PASS"]),
            "problem_statement": row["problem_statement"],
            "created_at": "2026-01-31T12:00:00Z",
            "image_name": "",
        }
        for row in rows
    ]


COMMON = (
    *("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement"),
    *("FAIL_TO_PASS", "PASS_TO_PASS"),
)


def names_of(row):
    ids = [name for key in ("PASS_TO_PASS", "FAIL_TO_PASS") for name in json.loads(row[key])]
    return [name.split("::")[1] for name in ids]


def file_diffs(patch):
    """A patch in the form in which R2E-Gym stores parsed patches."""
    types = {" ": "context", "+": "added", "-": "deleted", "\\": "note"}
    for text in patch.split("diff --git ")[1:]:
        head, *hunks = re.split(r"^@@ ", text, flags=re.MULTILINE)
        yield {
            "header": {"file": {"path": re.match(r"a/(\S+) ", head)[1]}},
            "is_binary_file": False,
            "hunks": [
                {
                    "descriptor": {"old_range": span(old), "new_range": span(new), "section": section},
                    "line_group": {
                        "all_lines": [
                            {"type": types[line[0]], "content": line[1:].removeprefix(" " if line[0] == "\\" else "")}
                            for line in body.splitlines()
                        ]
                    },
                }
                for old, new, section, body in (
                    re.fullmatch(r"-(\S+) \+(\S+) @@ ?(.*?)\n(.*)", hunk, re.DOTALL).groups() for hunk in hunks
                )
            ],
        }


def span(text):
    start, _, length = text.partition(",")
    return {"start": int(start), "length": int(length) if length else None}


def r2e_rows(rows):
    return [
        {
            "repo_name": "coins",
            "commit_hash": str(number),
            "docker_image": f"namanjain12/coins_final:{number}",
            "problem_statement": f"[ISSUE]\n{row['problem_statement']}\n[/ISSUE]",
            "expected_output_json": json.dumps(dict.fromkeys(names_of(row), "PASSED")),
            "parsed_commit_content": json.dumps({"file_diffs": list(file_diffs(row["patch"]))}),
            "relevant_files": ["coins/money.py"],
        }
        for number, row in enumerate(rows, start=1)
    ]


def live_rows(rows, python="python"):
    added = {
        "rebuild_cmds": ["python -c pass"],
        "test_cmds": [f"{python} -m pytest -rA -p no:cacheprovider {FILE} >log.txt"],
        "print_cmds": [
            "sed -nE 's/^(PASSED|FAILED) (\\S+).*/\\2 \\1/p' log.txt | sed 's/PASSED/pass/; s/FAILED/fail/'"
        ],
        "log_parser": LIVE_PARSER,
    }
    return [{name: row[name] for name in COMMON} | added for row in rows]


def rebench_rows(rows, pytest="pytest"):
    added = {
        "language": "python",
        "image_name": "swerebench/mini",
        "install_config": json.dumps({"test_cmd": f"{pytest} -rA {FILE}", "log_parser": "parse_log_pytest_v2"}),
    }
    return [{name: row[name] for name in COMMON} | added for row in rows]


def harbor_tasks(root):
    for number in (1, 2, 3):
        task = root / f"coins-{number}"
        for name in ("environment", "tests", "solution"):
            (task / name).mkdir(parents=True)
        (task / "task.toml").write_text('[metadata]\ndifficulty = "easy"\n[verifier]\ntimeout_sec = 60.0\n')
        (task / "instruction.md").write_text(f"double() has to give {number + 1} times the number.\n")
        (task / "environment" / "Dockerfile").write_text("FROM python:3.11\nWORKDIR /app\nCOPY . /app\n")
        (task / "environment" / "money.py").write_text(
            f'"""Numbers times {number + 1}."""\n\n\ndef double(number):\n    return number\n'
        )
        (task / "tests" / "test_double.py").write_text(f"import money\nassert money.double(5) == {5 * (number + 1)}\n")
        (task / "tests" / "test.sh").write_text(
            "#!/bin/bash\nif PYTHONPATH=. python /tests/test_double.py; then echo 1 > /logs/verifier/reward.txt\n"
            "else echo 0 > /logs/verifier/reward.txt; fi\n"
        )
    return root


def exercises(root):
    exercise = root / "exercises" / "practice" / "leap"
    for name in (".meta", ".docs"):
        (exercise / name).mkdir(parents=True)
    files = {"solution": ["leap.py"], "test": ["leap_test.py"], "example": [".meta/example.py"]}
    (exercise / ".meta" / "config.json").write_text(json.dumps({"files": files}))
    (exercise / ".meta" / "example.py").write_text(
        "def leap_year(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n"
    )
    (exercise / ".docs" / "instructions.md").write_text("Say whether a year is a leap year.\n")
    (exercise / "leap.py").write_text("def leap_year(year):\n    pass\n")
    (exercise / "leap_test.py").write_text(
        "import unittest\n\nfrom leap import leap_year\n\n\nclass LeapTest(unittest.TestCase):\n"
        "    def test_century(self):\n        self.assertIs(leap_year(1900), False)\n\n"
        "    def test_common(self):\n        self.assertIs(leap_year(1996), True)\n"
    )
    return root
