"""The packages that are mutated, and the tests that run for their mutants.

Each line has the arguments of one run of pytest. A mutant that one run finds is not tried in the next, so those that
find most at the least cost come first. The runner's code runs in processes of its own, where coverage does not see it;
hence a table.
"""

PACKAGES = {
    "operator/dgym_operator/controllers": (
        "tests/unit/operator/controllers",
        "tests/simulation/test_simulation.py -k 'survive or failed_once'",
        "tests/unit/operator/actions tests/unit/operator/app -k 'reconcile or execute or assignment or children'",
    ),
    "dgym/session": (
        "tests/unit/session",
        "tests/integration/session/test_session.py",
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
