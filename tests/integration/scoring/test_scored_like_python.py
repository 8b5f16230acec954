"""A program that is scored is started, and finds its modules, as under plain Python."""

import os
from pathlib import Path

import pytest

from tests.bare_python import bare_python
from tests.plain_python import FORMS, library_names, plain, without_advice, write_forms, write_hiding

INTERPRETERS = sorted(
    (Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions").glob("3.*/bin/python"),
    key=lambda path: [int(part) for part in path.parent.parent.name.split(".") if part.isdigit()],
)
NEWEST = str(INTERPRETERS[-1]) if INTERPRETERS else bare_python()
PYTHONS = [pytest.param(str(path), marks=pytest.mark.thorough) for path in INTERPRETERS[:-1][:1]] + [NEWEST]


@pytest.fixture(params=PYTHONS, ids=lambda path: Path(path).parent.parent.name)
def python(request):
    return request.param


@pytest.fixture
def score_like_python(run_plain, tmp_path, python):
    """Compare a scored run with plain Python's, in a workspace that ``write`` fills; with and without changed files."""

    async def compare(write, entrypoint):
        workspace = tmp_path / "workspace"
        for changed in ([], ["other.py"]):
            result = await run_plain({}, entrypoint, python=python, changed=changed, fill=write)
            assert without_advice(result.run.text) == plain(python, entrypoint, workspace)

    return compare


@pytest.mark.parametrize("entrypoint", [*FORMS, "cd sub && python ../main.py"])
async def test_the_program_sees_what_it_sees_alone(score_like_python, entrypoint):
    await score_like_python(write_forms, entrypoint)


@pytest.mark.parametrize("entrypoint", ["python main.py", "true && python main.py"])
async def test_modules_with_every_name_of_the_library_are_imported(score_like_python, python, entrypoint):
    names = library_names(python)
    await score_like_python(lambda workspace: write_hiding(workspace, names), entrypoint)


@pytest.mark.parametrize("name", ["json", "threading", "types"])
@pytest.mark.parametrize("entrypoint", ["python main.py", "true && python main.py"])
async def test_a_module_with_a_name_of_the_library_is_imported(score_like_python, entrypoint, name):
    await score_like_python(lambda workspace: write_hiding(workspace, [name]), entrypoint)


@pytest.mark.matrix
@pytest.mark.parametrize("part", range(16))
async def test_a_module_with_any_name_of_the_library_is_imported(score_like_python, python, part):
    for name in library_names(python)[part::16]:
        await score_like_python(lambda workspace, name=name: write_hiding(workspace, [name]), "python main.py")
