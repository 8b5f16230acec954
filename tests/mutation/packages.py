"""Packages that are mutated, and the tests that run for their mutants.

Each line has the arguments of a run of pytest. After a run has found a mutant, later runs skip it. So fast runs that
find many mutants come first. The tests are listed and not derived from coverage, because the runner's code runs in
separate processes that coverage does not measure.
"""

PACKAGES = {
    "operator/dgym_operator/controllers": (
        "tests/unit/operator/controllers",
        "tests/simulation/test_simulation.py -k 'end_correctly or failed_before'",
        "tests/unit/operator/actions tests/unit/operator/app -k 'reconcile or execute or assignment or children'",
    ),
    "dgym/session": (
        "tests/unit/session",
        "tests/integration/session/test_session.py",
        "tests/integration/session --ignore tests/integration/session/test_session.py",
    ),
    "dgym/runner/scoring": (
        "tests/unit/session/scoring tests/unit/benchmarks/test_conformance.py",
        "tests/integration/session/scoring",
    ),
    "dgym/workspace": (
        "tests/unit/workspace",
        "tests/integration/workspace",
        "tests/integration/session/test_workspace_commit.py",
    ),
}
