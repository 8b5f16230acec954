"""Scoring on a pristine copy of the repository, which the agent cannot access: protection of tests, run, result."""

from dgym.session.scoring._assessment import (
    BUILD_FILES,
    Assessment,
    UnmetRequirement,
    assess,
    find_unmet_requirements,
    unmet_requirements_in_output,
    unsteady_tests,
)
from dgym.session.scoring._integrity import label, shell_commands
from dgym.session.scoring._protection import patched_versions, read_versions, write_versions
from dgym.session.scoring._score import ALREADY_PASSES, SuiteCache, eval_may_not_have_run, list_paths, scored
from dgym.session.scoring._scorer import OpenUntouched, ScoringPlan, check_evaluation, run_version, score_changes

__all__ = [
    "ALREADY_PASSES",
    "BUILD_FILES",
    "Assessment",
    "OpenUntouched",
    "ScoringPlan",
    "SuiteCache",
    "UnmetRequirement",
    "assess",
    "check_evaluation",
    "eval_may_not_have_run",
    "find_unmet_requirements",
    "label",
    "list_paths",
    "patched_versions",
    "read_versions",
    "run_version",
    "score_changes",
    "scored",
    "shell_commands",
    "unmet_requirements_in_output",
    "unsteady_tests",
    "write_versions",
]
