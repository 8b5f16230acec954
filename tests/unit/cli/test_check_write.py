"""Tests of ``dgym check --write``: it writes lists of tests into a manifest and keeps the comments."""

import pytest

from dgym.api import loads
from dgym.cli.check import with_scoring
from dgym.cli.proposal import manifest_text, propose
from dgym.errors import ManifestError
from dgym.survey import read_requirements, survey

TASK = """\
# mine
apiVersion: dgym.dev/v1alpha1
kind: DebugTask
metadata: {name: x}
spec:
  # the source
  source: {localPath: .}
"""
LISTS = (["test_a.py::test_a[1: 'x']"], ["test_a.py::test_b", "test_a.py::test_c"])


def scoring_of(text):
    (resource,) = loads(text)
    spec = resource.spec.task if resource.kind == "Episode" else resource.spec
    return list(spec.scoring.fail_to_pass), list(spec.scoring.pass_to_pass)


@pytest.mark.parametrize(
    "more",
    [
        "",
        "  scoring:\n    failToPass: [old]\n  # after\n  entrypoint: pytest\n",
        "  scoring:\n    passToPass:\n      - old\n      - older\n    failToPass:\n    - old\n    parser: pytest\n",
        "  entrypoint: pytest\n---\n" + TASK.replace("name: x", "name: y"),
    ],
)
def test_lists_are_put_into_a_manifest_and_the_rest_stays(more):
    text = TASK + more
    if "---" in more:
        written = with_scoring(text, 2, *LISTS)
        assert written.startswith(TASK)
        written = written.partition("---\n")[2]
    else:
        written = with_scoring(text, 1, *LISTS)
    assert scoring_of(written) == LISTS
    assert scoring_of(with_scoring(written, 1, [], ["a::b"])) == ([], ["a::b"])
    kept = [line for line in more.partition("---\n")[0].splitlines() if "old" not in line and "ToPass" not in line]
    assert [line for line in kept if line.startswith("  #") and line not in written] == []
    assert "# mine\n" in written


def test_lists_take_the_place_of_the_comment_that_init_writes(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    text = manifest_text(propose(survey(tmp_path), read_requirements(tmp_path), agent="human"), local_path=".")
    written = with_scoring(text, 1, *LISTS)
    assert scoring_of(written) == LISTS
    assert "#   failToPass" not in written
    assert "# The agent:" in written


def test_a_manifest_in_flow_form_is_left_alone():
    text = "{apiVersion: dgym.dev/v1alpha1, kind: DebugTask, metadata: {name: x}, spec: {source: {localPath: .}}}\n"
    with pytest.raises(ManifestError, match="by hand"):
        with_scoring(text, 1, *LISTS)
