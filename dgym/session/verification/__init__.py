"""Scoring on a pristine copy of the repository that no agent touched: protection of tests, run, verdict."""

from dgym.session.verification.assessment import Assessment, assess, unsteady_tests
from dgym.session.verification.causes import BUILD_FILES, Lack, find_lacks, lacks_in_output
from dgym.session.verification.environment import suggests_doubt
from dgym.session.verification.files import patched_versions, read_versions, write_versions
from dgym.session.verification.integrity import label, shell_commands
from dgym.session.verification.suite import SuiteCache
from dgym.session.verification.verdict import ALREADY_PASSES, Verdict, list_paths
from dgym.session.verification.verifier import (
    OpenUntouched,
    VerificationPlan,
    check_evaluation,
    remember_passing,
    run_version,
    verify,
)

__all__ = [
    "ALREADY_PASSES",
    "BUILD_FILES",
    "Assessment",
    "Lack",
    "OpenUntouched",
    "SuiteCache",
    "Verdict",
    "VerificationPlan",
    "assess",
    "check_evaluation",
    "find_lacks",
    "label",
    "lacks_in_output",
    "list_paths",
    "patched_versions",
    "read_versions",
    "remember_passing",
    "run_version",
    "shell_commands",
    "suggests_doubt",
    "unsteady_tests",
    "verify",
    "write_versions",
]
