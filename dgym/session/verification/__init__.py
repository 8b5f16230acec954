"""Scoring on a pristine copy of the repository that no agent touched: protection of tests, run, verdict."""

from dgym.session.verification.assessment import Assessment, assess
from dgym.session.verification.verdict import Verdict
from dgym.session.verification.verifier import VerificationPlan, remember_passing, run_version, verify

__all__ = ["Assessment", "Verdict", "VerificationPlan", "assess", "remember_passing", "run_version", "verify"]
