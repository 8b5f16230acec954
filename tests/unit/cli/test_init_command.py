import pytest
from click.testing import CliRunner

from dgym.api import load
from dgym.cli.app import cli
from dgym.errors import ManifestError
from tests.support.calc import BUGGY


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "My Repo"
    (root / "tests").mkdir(parents=True)
    (root / "calc.py").write_text(BUGGY)
    (root / "tests" / "test_calc.py").write_text(
        "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
    )
    return root


@pytest.fixture
def init(monkeypatch):
    def run(directory, *arguments):
        monkeypatch.chdir(directory)
        return CliRunner().invoke(cli, ["init", *arguments])

    return run


def test_from_beside_the_repository(init, repository, tmp_path):
    done = init(tmp_path, "My Repo")
    assert done.exit_code == 0, done.output
    (episode,) = load(tmp_path / "my-repo.yaml")
    assert episode.metadata.name == "my-repo"
    assert episode.spec.agent.name == "human"
    assert episode.spec.task.entrypoint == "python -m pytest -q tests"
    assert episode.spec.task.read_only_patterns == ("/tests/",)
    assert episode.spec.task.source.local_path == str(repository)
    assert f"dgym run {tmp_path / 'my-repo.yaml'}\n" in done.output
    assert CliRunner().invoke(cli, ["validate", "my-repo.yaml"]).exit_code == 0


def test_from_inside_the_repository_nothing_is_put_into_it(init, repository, tmp_path):
    before = sorted(repository.rglob("*"))
    done = init(repository / "tests", "..", "--agent", "replay")
    assert done.exit_code == 0, done.output
    assert sorted(repository.rglob("*")) == before
    (episode,) = load(tmp_path / "my-repo.yaml")
    assert episode.spec.agent.name == "replay"
    assert episode.spec.task.source.local_path == str(repository)
    assert f"--results {tmp_path / 'results'}" in done.output


def test_existing_files_are_overwritten_only_with_force(init, repository, tmp_path):
    (tmp_path / "my-repo.yaml").write_text("mine")
    done = init(tmp_path, "My Repo")
    assert done.exit_code == 2
    assert "--force overwrites it" in done.output
    assert (tmp_path / "my-repo.yaml").read_text() == "mine"
    assert init(tmp_path, "My Repo", "--force").exit_code == 0
    assert load(tmp_path / "my-repo.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["My Repo", "my-repo.yaml"]


def test_the_manifest_can_go_elsewhere_or_be_printed(init, repository, tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    written = init(tmp_path, "My Repo", "--output", "a/b/x.yaml")
    assert written.exit_code == 0
    assert f"x.yaml --allow-local-path '{repository}'\n" in written.output
    with pytest.raises(ManifestError, match="--allow-local-path"):
        load(tmp_path / "a" / "b" / "x.yaml")
    (episode,) = load(tmp_path / "a" / "b" / "x.yaml", allow_local_paths=[repository])
    assert episode.spec.task.source.local_path == str(repository)
    printed = init(tmp_path, "My Repo", "--output", "-").output
    assert str(repository) in printed
    assert printed.startswith("# One debugging episode.")
    assert "cannot be written" in init(tmp_path, "My Repo", "--output", "none/x.yaml").output


def test_a_manifest_inside_the_repository_is_warned_about(init, repository):
    done = init(repository, "--output", "dgym.yaml")
    assert done.exit_code == 0
    assert "where the agent can read it" in done.output


def test_patterns_can_go_into_files_of_the_repository(init, repository, tmp_path):
    (repository / ".env").write_text("KEY=1")
    done = init(tmp_path, "My Repo", "--policy-files")
    assert done.exit_code == 0, done.output
    assert (repository / ".debugignore").read_text() == ".env\n"
    assert (repository / ".debugreadonly").read_text() == "/tests/\n"
    (episode,) = load(tmp_path / "my-repo.yaml")
    assert episode.spec.task.read_only_patterns == ()
    assert episode.spec.task.ignore_patterns == ()


def test_no_interpreter_inside_the_repository_is_proposed(init, repository, tmp_path):
    """A hostile repository controls its own interpreter, and dgym would start it outside of the sandbox."""
    for name in (".venv/bin/python", "venv/bin/python", "bin/python", "python"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("#!/bin/sh\ntouch started\n")
        (repository / name).chmod(0o755)
    for name in (".venv", "venv"):
        (repository / name / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (repository / name / "lib" / "python3.11" / "site-packages" / "pytest").mkdir(parents=True)
    (repository / "pyproject.toml").write_text(
        '[tool.dgym]\npython = "./python"\n[tool.uv]\npython = "./python"\n[tool.poetry]\nvirtualenvs = ".venv"\n'
    )
    done = init(tmp_path, "My Repo")
    assert done.exit_code == 0, done.output
    assert "--python" not in done.output
    (episode,) = load(tmp_path / "my-repo.yaml")
    assert episode.spec.task.entrypoint == "python -m pytest -q tests"
    assert not list(tmp_path.rglob("started"))


def test_doubts_are_printed_as_warnings(init, tmp_path):
    root = tmp_path / "empty"
    root.mkdir()
    (root / "Pipfile").write_text("")
    (root / "pyproject.toml").write_text('[project]\nrequires-python = ">=99.0"\n')
    (root / "node_modules").mkdir()
    done = init(tmp_path, "empty")
    assert done.exit_code == 0
    for expected in ("no tests were found", "Pipfile: not read", "requires Python >=99.0", "node_modules is copied"):
        assert expected in done.output


def test_the_packages_of_a_larger_repository_are_named(init, tmp_path):
    root = tmp_path / "large"
    for path in ("packages/cart", "packages/shop", "tests/data", "tools"):
        (root / path).mkdir(parents=True)
        (root / path / "pyproject.toml").write_text("" if path == "tools" else '[project]\nname = "x"\n')
    (root / "test_all.py").write_text("import shop\n\n\ndef test_it():\n    pass\n")
    done = init(tmp_path, "large")
    assert done.exit_code == 0
    assert f"{root} has no build system, but these directories have one: packages/cart, packages/shop;" in done.output
    assert f"Write a manifest for one: dgym init {root / 'packages' / 'cart'}\n" in done.output
    (root / "pyproject.toml").write_text('[project]\nname = "x"\n')
    assert "has no build system" not in init(tmp_path, "large", "--force").output


def test_a_missing_directory_is_a_usage_error(init, tmp_path):
    assert init(tmp_path, "nowhere").exit_code == 2
