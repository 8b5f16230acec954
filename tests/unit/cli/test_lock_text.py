"""Tests of the requirements that ``dgym lock`` writes into the text of a manifest."""

import pytest

from dgym.api import DebugTaskSpec
from dgym.cli.lock import is_locked, with_requirements
from dgym.documents import read_yaml
from dgym.errors import ManifestError

HASH = "--hash=sha256:" + "a" * 64
OTHER = "--hash=sha256:" + "b" * 64
LOCKED = (f"acme==1.0 {HASH}", f"beta==2 {HASH} {OTHER}")
HEAD = "apiVersion: dgym.dev/v1alpha1\nkind: DebugTask\nmetadata: {name: calc}\nspec:\n"
EPISODE = "apiVersion: dgym.dev/v1alpha1\nkind: Episode\nmetadata: {name: calc}\nspec:\n  task:\n"


def value(text, number=1):
    return next(document for document in read_yaml(text) if document.number == number).value["spec"]


def test_the_short_form_gets_an_environment_with_the_python():
    text = HEAD + "  requirements:\n  - acme  # why\n  entrypoint: python x.py  # run\n"
    changed = with_requirements(text, 1, LOCKED, "3.11")
    assert value(changed) == {
        "requirements": list(LOCKED),
        "environment": {"python": "3.11"},
        "entrypoint": "python x.py",
    }
    assert "# acme  # why" in changed
    assert "python x.py  # run" in changed


def test_the_python_of_the_task_stays():
    text = EPISODE + '    environment:\n      python: "3.9"\n      requirements:\n        - acme\n        - gamma\n'
    environment = value(with_requirements(text, 1, LOCKED, "3.11"))["task"]["environment"]
    assert environment == {"python": "3.9", "requirements": list(LOCKED)}


def test_only_the_document_of_this_number_is_changed():
    first = HEAD + "  requirements:\n    - acme\n"
    changed = with_requirements(f"{first}---\n{first}", 2, LOCKED, "3.11")
    assert changed.startswith(f"{first}---\n")
    assert value(changed, 2)["requirements"] == list(LOCKED)


@pytest.mark.parametrize(
    "spec",
    [
        "  requirements: [acme]\n  entrypoint: x\n",
        "  requirements:\n  - acme\n\n  # of the tests\n  - gamma\n\n  entrypoint: x\n",
    ],
)
def test_lists_of_other_forms_are_replaced(spec):
    changed = with_requirements(HEAD + spec, 1, LOCKED, "3.11")
    assert value(changed)["requirements"] == list(LOCKED)
    assert value(changed)["entrypoint"] == "x"
    assert ("# of the tests" in spec) == ("# of the tests" in changed)


@pytest.mark.parametrize(
    "spec", ["  environment: {requirements: [acme]}\n", "  requirements: &all [acme]\n  env: []\n  tools: *all\n"]
)
def test_a_manifest_that_cannot_be_changed_line_by_line_is_refused(spec):
    with pytest.raises(ManifestError, match="cannot be changed line by line"):
        with_requirements(HEAD + spec, 1, LOCKED, "3.11")


def test_a_task_is_locked_if_all_its_requirements_have_hashes():
    assert is_locked(DebugTaskSpec())
    assert is_locked(DebugTaskSpec(requirements=LOCKED))
    assert not is_locked(DebugTaskSpec(requirements=("acme==1.0",)))
