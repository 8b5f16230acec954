"""Tests of the files that an entrypoint runs. They decide the score and are protected."""

import pytest

from dgym.session.scoring._protection import files_of_shell_line, protect

PRISTINE = ["Makefile", "app/Makefile", "rules/base.mk", "run.sh", "check.py", "app/main.py", "tests/test_a.py"]


@pytest.mark.parametrize(
    "entrypoint",
    ["python check.py", "python -m app", "pytest -q tests", "A=1 python3.11 check.py x", "cd app && pytest -q"],
)
def test_one_python_program_may_be_what_has_to_be_repaired(entrypoint):
    assert files_of_shell_line(entrypoint, PRISTINE) == []


@pytest.mark.parametrize(
    ("entrypoint", "named"),
    [
        ("make test", {"Makefile", "GNUmakefile", "rules/base.mk", "test"}),
        ("make -C app test", {"app/Makefile", "Makefile", "app/test"}),
        ("cd app && make test", {"app/Makefile", "app/GNUmakefile"}),
        ("true && sh ./run.sh", {"run.sh"}),
        ("bash -c 'sh run.sh'", {"run.sh"}),
        ("nox -s tests", {"noxfile.py"}),
        ("sh 'unclosed run.sh", {"run.sh"}),
    ],
)
def test_a_shell_line_runs_the_files_it_names(entrypoint, named):
    assert named <= set(files_of_shell_line(entrypoint, PRISTINE))


def test_programs_and_directories_stay_the_agents_to_repair():
    files = files_of_shell_line("true && cd app && python check.py && python -m app", PRISTINE)
    protection = protect(PRISTINE, [], files)
    for path in ("check.py", "app/main.py", "app/new.py", "app/deep/er.py"):
        assert protection.why_refused(path) is None
    assert files_of_shell_line("cd .. && ls /etc; ls .", PRISTINE) == ["cd", "ls"]


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("evil-1.0.dist-info/entry_points.txt", True),
        ("src/evil.egg-info/entry_points.txt", True),
        ("known.dist-info/entry_points.txt", True),
        ("known.dist-info/RECORD", True),
        ("unittest.py", True),
        ("unittest/case.py", True),
        ("src/numpy/testing.py", True),
        ("app/unittest.py", False),
        ("operator/new.py", False),
        ("math.txt", False),
        ("mathematics.py", False),
    ],
)
def test_new_files_that_affect_the_tests_are_refused(path, refused):
    pristine = [*PRISTINE, "operator/__init__.py", "known.dist-info/entry_points.txt"]
    assert (protect(pristine, []).why_refused(path) is not None) == refused
