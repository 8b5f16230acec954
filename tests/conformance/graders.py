"""Grading of a case by dgym and by the official harness."""

import importlib
import sys
import tempfile
import types
from pathlib import Path
from typing import NamedTuple

from dgym.api import Evaluation
from dgym.benchmarks.datasets.swebench import parser_name, rule_name
from dgym.runner.scoring.script import PARSERS, read_log, reported
from dgym.sandbox import EntrypointResult, RunResult, TestReport
from dgym.session.scoring._score import grade


class Graded(NamedTuple):
    """True if the case is resolved, true if it could be graded, and the tests that count as passed."""

    resolved: bool
    graded: bool
    good: list[str]


def ours(case):
    """The grade of dgym. The text is read as in the verifier and graded as in the session."""
    parser = parser_name(f"parse_log_{case.parser}")
    outcomes, why = read_log(case.text, PARSERS[parser])
    report = TestReport(
        form="script",
        outcomes={name: reported(outcome) for name, outcome in outcomes.items()},
        finished=True,
        exit_status=0,
        parser=parser,
        unread=why or "",
    )
    result = EntrypointResult(run=RunResult(exit_status=0, ended_by="exit", output=b""), report=report)
    evaluation = Evaluation(
        script=":",
        parser=parser,
        rule=rule_name(case.rule),
        fail_to_pass=tuple(case.fail_to_pass),
        pass_to_pass=tuple(case.pass_to_pass),
    )
    scored = grade(evaluation, result, 60.0)
    good = sorted(name for name, outcome in scored.tests.items() if outcome == "passed")
    return Graded(scored.resolved, why is None, good)


_UNUSED = ("unidiff", "bs4", "requests", "dotenv")
"""Packages that parsers of other languages and the patch reader import. Python parsers do not call them."""


class _Unused(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return


class Harness:
    """The official harness, from the directory in which its wheel is unpacked.

    The package's ``__init__`` is not run, because it imports docker, modal and datasets, which grading does not use.
    The modules that grade are unchanged.
    """

    def __init__(self, directory):
        sys.path.insert(0, str(directory))
        self.version = importlib.import_module("swebench").__version__
        package = types.ModuleType("swebench.harness")
        package.__path__ = [str(Path(directory, "swebench", "harness"))]
        sys.modules["swebench.harness"] = package
        for name in _UNUSED:
            sys.modules.setdefault(name, _Unused(name))
        self._grading = importlib.import_module("swebench.harness.grading")
        self._types = importlib.import_module("swebench.types")
        python = importlib.import_module("swebench.harness.log_parsers.python")
        self.parsers = sorted(name.removeprefix("parse_log_") for name in vars(python) if name.startswith("parse_log_"))

    def grade(self, case):
        """The grade of the harness."""
        spec = self._types.TestSpec(
            instance_id="x",
            image="",
            eval_script_list=[],
            repo="",
            version="",
            FAIL_TO_PASS=case.fail_to_pass,
            PASS_TO_PASS=case.pass_to_pass,
            log_parser=f"parse_log_{case.parser}",
            eval_type=case.rule,
        )
        prediction = {"instance_id": "x", "model_patch": "x"}
        with tempfile.NamedTemporaryFile("w", suffix=".txt", newline="") as file:
            file.write(case.text)
            file.flush()
            report = self._grading.get_eval_report(spec, prediction, file.name, include_tests_status=True)["x"]
        status = report.get("tests_status", {})
        lists = (status.get(name, {}).get("success", ()) for name in ("FAIL_TO_PASS", "PASS_TO_PASS"))
        good = sorted(name for names in lists for name in names)
        return Graded(report["resolved"], report["patch_successfully_applied"], good)
