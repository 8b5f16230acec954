import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.api import loads
from dgym.cli.init import missing_requirements
from dgym.cli.manifests import resource_name
from dgym.cli.proposal import find_entrypoint, manifest_text, other_python, propose
from dgym.sandbox.local import Pinned, _environments
from dgym.session.scoring import UnmetRequirement
from dgym.survey import Requirements, RequirementsSource, Survey, allows, protected_patterns, read_requirements, survey

TEST = "def test_it():\n    assert True\n"


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "entrypoint", "protected"),
    [
        ({"tests/test_a.py": TEST, "a.py": ""}, "python -m pytest -q tests", ["/tests/"]),
        ({"test_a.py": TEST, "b_test.py": TEST}, "python -m pytest -q", ["*_test.py", "test_*.py"]),
        ({"a/tests/test_a.py": TEST, "b/tests/test_b.py": TEST}, "python -m pytest -q", ["/a/tests/", "/b/tests/"]),
        ({"test.py": TEST}, "python -m pytest -q test.py", ["/test.py"]),
        ({"test.py": "assert 1 + 1 == 3\n"}, "python test.py", ["/test.py"]),
        ({"my tests/tests.py": TEST}, "python -m pytest -q 'my tests/tests.py'", ["/my tests/tests.py"]),
        ({"manage.py": "import django", "app/tests.py": "TestCase"}, "python manage.py test", ["/app/tests.py"]),
        ({"pytest.ini": "[pytest]\ntestpaths = spec\n", "spec/test_a.py": TEST}, "python -m pytest -q", ["test_*.py"]),
        (
            {"setup.cfg": "[tool:pytest]\naddopts = -x\n", "tests/test_a.py": TEST},
            "python -m pytest -q",
            ["/tests/"],
        ),
        ({"a.py": ""}, "python -m pytest -q", []),
    ],
)
def test_tests_are_found_and_protected(tmp_path, files, entrypoint, protected):
    found = survey(write(tmp_path, files))
    assert find_entrypoint(found).command == entrypoint
    assert protected_patterns(found) == protected
    assert find_entrypoint(found).certain == (files != {"a.py": ""})


def test_directories_of_tools_are_not_searched(tmp_path):
    places = (".git", "__pycache__", "node_modules/x", "env", ".tox/py")
    write(tmp_path, {f"{place}/test_x.py": TEST for place in places} | {"env/pyvenv.cfg": "", "a.py": ""})
    found = survey(tmp_path)
    assert found.tests == ()
    assert found.bulky == (".tox", "node_modules")
    assert found.python_files == 1


def test_secrets_are_proposed_to_be_hidden(tmp_path):
    write(tmp_path, {".env": "", "keys/server.pem": "", "environment.py": ""})
    assert survey(tmp_path).secrets == (".env", "keys/server.pem")


def test_policy_files_of_the_repository_take_the_place_of_proposals(tmp_path):
    write(tmp_path, {".debugignore": "x", ".debugreadonly": "y", ".env": "", "tests/test_a.py": TEST})
    proposal = propose(survey(tmp_path), Requirements(), agent="human")
    assert proposal.ignore == proposal.read_only == ()
    text = manifest_text(proposal, local_path=".")
    assert "repository's .debugreadonly" in text
    assert "readOnlyPatterns" not in text


def proposed(root):
    return manifest_text(propose(survey(root), read_requirements(root), agent="human"), local_path=".")


def test_pins_with_hashes_are_written_with_their_python(tmp_path):
    digests = [f"--hash=sha256:{digit * 64}" for digit in "123"]
    lines = (f"one==1.0 {digests[0]}", " ".join(["two==2.0", *digests[1:]]))
    pinned = Pinned(lines=lines, hashes=True)
    proposal = propose(survey(write(tmp_path, {"a.py": ""})), Requirements(), agent="human", pinned=pinned)
    text = manifest_text(proposal, local_path=".")
    environment = loads(text)[0].spec.task.environment
    assert environment.requirements == lines
    assert environment.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"        - >-\n          two==2.0\n          {digests[1]}\n          {digests[2]}\n" in text


def test_a_repository_is_installed_or_its_source_layout_put_on_the_path(tmp_path):
    write(tmp_path, {"src/pkg/__init__.py": "", "tests/test_a.py": TEST})
    assert "PYTHONPATH" in proposed(tmp_path)
    assert "install: editable" not in proposed(tmp_path)
    write(tmp_path, {"pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\n'})
    assert "PYTHONPATH" not in proposed(tmp_path)
    write(
        tmp_path,
        {"setup.py": "from setuptools import setup, Extension\nsetup(ext_modules=[Extension('a', ['a.c'])])\n"},
    )
    (episode,) = loads(proposed(tmp_path))
    assert episode.spec.task.environment.install == "editable"
    assert episode.spec.task.build_commands == (
        "python -m pip install -q --no-deps --no-build-isolation --use-pep517 -e .",
    )


@pytest.mark.parametrize(
    ("files", "entrypoint"),
    [
        (
            {
                "tox.ini": "[testenv]\ncommands = pytest --cov --doctest-modules --ignore src/b.py src tests\n",
                "src/a.py": "",
                "tests/b.py": "",
            },
            "python -m pytest -q --doctest-modules --ignore=src/b.py src tests",
        ),
        ({"Makefile": "t:\n\tpytest --doctest-glob='*.rst' -x\n"}, "python -m pytest -q '--doctest-glob=*.rst'"),
        (
            {"src/a/tests.py": "from unittest import TestCase", "src/b/tests.py": "TestCase"},
            "python -m pytest -q src/a/tests.py src/b/tests.py",
        ),
    ],
)
def test_doctests_and_suites_with_other_names_are_run(tmp_path, files, entrypoint):
    found = survey(write(tmp_path, files))
    assert find_entrypoint(found, read_requirements(tmp_path).pytest_arguments).command == entrypoint


@pytest.mark.parametrize(("asks", "python"), [("", None), (">=3.8", None), ("<3.9", "3.8"), (">=99.0", None)])
def test_another_python_is_named_where_the_repository_asks_for_it(asks, python):
    assert other_python(asks) == python


def lines_of(root, files):
    write(root, files)
    return read_requirements(root, survey(root)).lines


def test_requirements_are_read_from_all_common_files(tmp_path):
    files = {
        "requirements.txt": "# base\nnumpy>=1.26  # fast\n-r requirements/more.txt\n./local\n--index-url x\n",
        "requirements/more.txt": "attrs==23.1 --hash=sha256:00 \\\n  --hash=sha256:11\n-r ../../outside.txt\n",
        "pyproject.toml": (
            '[project]\nname = "My.Pkg"\nrequires-python = ">=3.9"\ndependencies = ["rich", "numpy>=1.26"]\n'
            '[project.optional-dependencies]\ntest = ["my_pkg[extra]", "hypothesis"]\n'
            'docs = ["sphinx"]\nextra = ["six"]\n'
            '[dependency-groups]\ndev = [{include-group = "lint"}]\n'
            'lint = ["ruff", "coverage", {include-group = "dev"}]\n'
        ),
        "setup.cfg": "[options]\ninstall_requires =\n  toolz\n",
    }
    found = read_requirements(write(tmp_path, files))
    assert found.lines == ("rich", "numpy>=1.26", "toolz", "attrs==23.1", "hypothesis", "six", "coverage")
    assert found.files == ("pyproject.toml", "setup.cfg", "requirements/more.txt")
    assert [text.split("'")[1] for text in found.left_out] == ["./local", "--index-url x"]
    assert found.python == ">=3.9"


SETUP = """
from setuptools import setup
base = ['six']
extras = {'docs': ['sphinx']}
extras['testing'] = base + ['mock']
setup(name='x', install_requires=base, extras_require=extras)
raise SystemExit
"""
NOX = """
import nox
DEPS = ['six', 'mock']
@nox.session(python=['3.9'])
def tests(session):
    session.install(*DEPS)
    session.install('-e', '.', '-r', 'more.txt')
    session.run('pytest')
@nox.session
def lint(session):
    session.install('toolz')
"""
POETRY = """
[tool.poetry.dependencies]
python = '^3.9'
attrs = '^22.1'
gone = {git = 'https://example.com/x'}
[tool.poetry.group.test.dependencies]
six = '~1.16'
mock = '*'
toolz = {version = '0.12', extras = ['a']}
"""
WORKFLOW = """
jobs:
  test:
    steps:
      - run: |
          python -m pip install -U pip tox six 'mock>=1'
          pip install -r more.txt && pytest --cov
  docs:
    steps: [{run: pip install sphinx}]
"""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"tox.ini": "[testenv]\ndeps =\n  pytest\n  -r{toxinidir}/more.txt\n  py38: mock\n", "more.txt": "six\n"},
            ("six", "pytest", "mock"),
        ),
        (
            {
                "tox.ini": "[testenv]\ndeps =\n  six==1.15\n  py{38,39}: mock<5\n  mock4: mock==4.0\n"
                "  toolz{0,1}: toolz>=0.1,<2\n"
            },
            ("six==1.15", "mock<5", "mock", "toolz"),
        ),
        ({"tox.ini": "[base]\ndeps = six\n[testenv]\ndeps = {[base]deps}\n[testenv:docs]\ndeps = sphinx\n"}, ("six",)),
        (
            {
                "tox.ini": "[testenv]\ndeps =\n  tests: -rmore.txt\n  mypy: -rtypes.txt\n  lint: toolz\n"
                "  -rmore_mypy.txt\nextras =\n  mypy: docs\n",
                "setup.py": SETUP,
                "more.txt": "attrs\n",
                "types.txt": "typing\n",
                "more_mypy.txt": "mypy==0.9\n",
            },
            ("six", "mock", "attrs"),
        ),
        ({"tox.ini": "[testenv]\nextras = testing\n", "setup.py": SETUP}, ("six", "mock")),
        ({"setup.py": "import setuptools\nsetuptools.setup(**dict(tests_require=['nose']))\n"}, ("nose",)),
        ({"pyproject.toml": '[tool.tox]\nlegacy_tox_ini = "[testenv]\\ndeps = six"\n'}, ("six",)),
        ({"pyproject.toml": "[tool.tox.env_run_base]\ndeps = ['six']\ncommands = [['pytest']]\n"}, ("six",)),
        ({"noxfile.py": NOX, "more.txt": "attrs\n"}, ("attrs", "six", "mock")),
        (
            {
                "pyproject.toml": "[tool.hatch.envs.test]\ndependencies = ['six']\n"
                "[tool.hatch.envs.default]\ndependencies = ['mock']\n"
            },
            ("six",),
        ),
        ({"pyproject.toml": "[tool.pdm.dev-dependencies]\ntest = ['six']\nlint = ['mock']\n"}, ("six",)),
        ({"pyproject.toml": POETRY}, ("attrs>=22.1,<23", "six>=1.16,<1.17", "mock", "toolz[a]==0.12")),
        ({".github/workflows/ci.yml": WORKFLOW, "more.txt": "attrs\n"}, ("attrs", "six", "mock>=1")),
        ({"Makefile": "test:\n\tpip install six\n\tpytest\n"}, ("six",)),
        ({"requirements-test.txt": "six\n", "requirements-dev.txt": "sphinx\n"}, ("six",)),
        ({"requirements-dev.txt": "six\n"}, ("six",)),
        (
            {
                "pyproject.toml": "[project.optional-dependencies]\ndev = ['six']\ntests = ['mock']\n"
                "testing = ['attrs']\n"
            },
            ("mock",),
        ),
        (
            {"pytest.ini": "[pytest]\naddopts = --cov=x -n 2\nasyncio_mode = auto\n"},
            ("pytest-cov", "pytest-xdist", "pytest-asyncio"),
        ),
        (
            {
                "tests/test_a.py": "import pytest\nimport yaml\n@pytest.mark.timeout(1)\ndef test_a(mocker):\n"
                "    import numpy\n"
            },
            ("PyYAML", "pytest-timeout", "pytest-mock"),
        ),
        ({"tests/conftest.py": "def mocker(): pass\n", "tests/test_a.py": "def test_a(mocker): pass\n"}, ()),
        ({"tests/conftest.py": "def pytest_ignore_collect(path, config): pass\n"}, ("pytest<9",)),
        ({"tests/conftest.py": "def pytest_ignore_collect(collection_path): pass\n"}, ()),
        (
            {
                "pyproject.toml": "[project]\nname = 'a'\ndependencies = ['setuptools>=61']\n",
                "a/update.py": "def main():\n    from pkg_resources import parse_version\n",
            },
            ("setuptools>=61", "setuptools<82"),
        ),
        ({"a/__init__.py": "# No import pkg_resources.\n", "setup.py": "import pkg_resources\n"}, ()),
        ({"mock.py": "", "test_a.py": "import mock\n"}, ()),
    ],
)
def test_requirements_that_developers_install_for_tests_are_found(tmp_path, files, expected):
    assert lines_of(tmp_path, files) == expected


def test_code_is_not_executed_and_hostile_files_do_not_hang(tmp_path):
    many = "".join(f"a{n} = a{n - 1} + a{n - 1}\n" for n in range(1, 200))
    groups = "".join(f"g{n} = [{{include-group = 'g{n + 1}'}}, {{include-group = 'g{n + 1}'}}]\n" for n in range(60))
    files = {
        "setup.py": f"a0 = ['x']\n{many}open('executed', 'w')\nsetup(install_requires=a199)\n",
        "noxfile.py": "(" * 5000,
        "pyproject.toml": f"[dependency-groups]\n{groups}test = [{{include-group = 'g0'}}]\n",
        "tox.ini": "[a]\nx = {[a]x}{[a]x}{[a]x}\n[testenv]\ndeps = {[a]x}\n",
        ".github/workflows/a.yml": "a: &a [x]\n" + "".join(f"a{n}: &a{n} [*a, *a]\n" for n in range(50)),
    }
    assert lines_of(tmp_path, files) == ()
    assert not (tmp_path / "executed").exists()


def test_requirements_are_single_lines(tmp_path):
    text = '[project]\nname = "x"\ndependencies = ["six;\\n--extra-index-url=evil.example", "mock\\u2028--pre"]\n'
    found = read_requirements(write(tmp_path, {"pyproject.toml": text}))
    assert not [line for line in found.lines if len(line.splitlines()) > 1]


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("evil @ https://example.com/evil.tar.gz", "--build-requirements"),
        ("evil@git+https://example.com/evil.git@main", "--build-requirements"),
        ("evil[all] @ file:///tmp/evil", "--build-requirements"),
        ("evil @ ./evil-1.0-py3-none-any.whl", "--build-requirements"),
        ("git+https://example.com/evil.git#egg=evil", "--python PATH"),
        ("https://example.com/evil-1.0.tar.gz", "--python PATH"),
        ("-e .", "--python PATH"),
        ("-e git+https://example.com/evil.git#egg=evil", "--python PATH"),
        ("--editable=.", "--python PATH"),
        ("./evil", "--python PATH"),
        ("evil/project", "--python PATH"),
        ("C:\\\\evil", "--python PATH"),
        ("--index-url https://example.com/simple", "--python PATH"),
        ("--extra-index-url=https://example.com/simple", "--python PATH"),
        ("-f https://example.com", "--python PATH"),
        ("--trusted-host example.com", "--python PATH"),
        ("-c constraints.txt", "--python PATH"),
        ("numpy --global-option=x", "--python PATH"),
    ],
)
@pytest.mark.parametrize("file", ["requirements.txt", "pyproject.toml", "setup.cfg"])
def test_requirements_that_are_not_wheels_are_left_out_with_a_remedy(tmp_path, file, line, remedy):
    text = {
        "requirements.txt": f"attrs\n{line}\n",
        "pyproject.toml": f'[project]\ndependencies = ["attrs", {json.dumps(line)}]\n',
        "setup.cfg": f"[options]\ninstall_requires =\n  attrs\n  {line}\n",
    }[file]
    found = read_requirements(write(tmp_path, {file: text}))
    assert found.lines == ("attrs",)
    (note,) = found.left_out
    assert note.startswith(f"{file}: {line!r} ")
    assert remedy in note


@given(st.lists(st.text(st.sampled_from("ab1 @-./[]:;=<>~\\\\"), min_size=1, max_size=12), max_size=4))
def test_proposed_requirements_can_be_installed_without_building(tmp_path_factory, lines):
    root = write(tmp_path_factory.mktemp("some"), {"requirements.txt": "\n".join(lines)})
    for line in read_requirements(root).lines:
        assert _environments._checked([line]) == [line]
        _environments._refuse_direct([line])


def test_files_that_cannot_be_read_are_named(tmp_path):
    write(tmp_path, {"setup.py": "raise SystemExit", "Pipfile": "", "pyproject.toml": "[project", "setup.cfg": "x = 1"})
    found = read_requirements(tmp_path)
    assert found.lines == ()
    assert found.left_out == ("Pipfile: not read; add the requirements that it lists",)


def test_requirements_beyond_the_limit_are_reported_as_left_out(tmp_path):
    found = read_requirements(write(tmp_path, {"requirements.txt": "".join(f"p{n}\n" for n in range(300))}))
    assert len(found.lines) == 256
    assert found.left_out[0].startswith("44 requirements beyond")


@pytest.mark.parametrize(
    ("specifier", "version", "allowed"),
    [
        ("", (3, 11), True),
        (">=3.9", (3, 11), True),
        (">=3.12", (3, 11), False),
        (">=3.8,<3.11", (3, 11), False),
        ("<3.12", (3, 11), True),
        ("<3.11.4", (3, 11), True),
        ("~=3.8", (3, 11), True),
        (">=2.7", (3, 11), True),
        ("==3.*", (3, 11), True),
        ("nonsense", (3, 11), True),
    ],
)
def test_pythons_are_compared_by_minor_version(specifier, version, allowed):
    assert allows(specifier, version) is allowed


TEXT = st.text(min_size=1, max_size=40)
# A line with an option is never proposed.
LINES = TEXT.filter(lambda text: "--" not in text)


@given(name=TEXT, path=TEXT, tests=st.lists(TEXT, max_size=3), lines=st.lists(LINES, max_size=3), left=TEXT)
def test_the_manifest_is_valid_for_any_names(tmp_path_factory, name, path, tests, lines, left):
    root = tmp_path_factory.getbasetemp() / "unused" / name.replace("/", "_").replace("\0", "_")
    found = Survey(
        root=root,
        python_files=1,
        modules=frozenset(),
        conftests=(),
        tests=tuple(tests),
        other_tests=(),
        pytest=None,
        bulky=(),
        secrets=tuple(tests),
        policy_files=(),
        django=False,
        builds=True,
        source_layout=True,
    )
    source = RequirementsSource(file=name, lines=tuple(lines))
    requirements = Requirements(sources=(source,), left_out=(left,), extension=left)
    (resource,) = loads(manifest_text(propose(found, requirements, agent="human"), local_path=path))
    assert resource.metadata.name == resource_name(root.name)
    assert resource.spec.task.source.local_path == path
    assert resource.spec.task.environment.requirements == tuple(dict.fromkeys(lines))
    assert resource.spec.task.ignore_patterns == tuple(tests)


def test_modules_of_the_repository_are_not_proposed_as_distributions(tmp_path):
    found = survey(write(tmp_path, {"packages/x/src/shop/__init__.py": "", "packages/x/tests/test_a.py": TEST}))
    unmet = [UnmetRequirement(kind="module", name=name) for name in ("shop", "yaml")]
    assert missing_requirements(unmet, read_requirements(tmp_path, found), found.names) == ["PyYAML"]
