"""Scoring on a pristine copy of the repository, which the agent cannot access: protection of tests, run, result."""

from dgym.session.scoring._assessment import (
    BUILD_FILES,
    Assessment,
    Lack,
    assess,
    find_lacks,
    lacks_in_output,
    unsteady_tests,
)
from dgym.session.scoring._integrity import label, shell_commands
from dgym.session.scoring._protection import patched_versions, read_versions, write_versions
from dgym.session.scoring._score import ALREADY_PASSES, SuiteCache, list_paths, scored, suggests_doubt
from dgym.session.scoring._scorer import OpenUntouched, ScoringPlan, check_evaluation, run_version, score_changes

__all__ = [
    "ALREADY_PASSES",
    "BUILD_FILES",
    "Assessment",
    "Lack",
    "OpenUntouched",
    "ScoringPlan",
    "SuiteCache",
    "assess",
    "check_evaluation",
    "find_lacks",
    "label",
    "lacks_in_output",
    "list_paths",
    "patched_versions",
    "read_versions",
    "run_version",
    "score_changes",
    "scored",
    "shell_commands",
    "suggests_doubt",
    "unsteady_tests",
    "write_versions",
]
