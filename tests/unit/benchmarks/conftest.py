"""Fixtures that import benchmarks into a cache directory of the test."""

import pytest
from click.testing import CliRunner

from dgym.cli.app import cli
from tests.support.miniature import make_repository, write_rows


@pytest.fixture(scope="session")
def repositories(tmp_path_factory):
    root = tmp_path_factory.mktemp("repositories")
    return root, make_repository(root)


@pytest.fixture
def rows(repositories):
    return [dict(row) for row in repositories[1]]


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """Return a function that runs ``dgym benchmark`` with its arguments and returns click's result."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments):
        return CliRunner().invoke(cli, ["benchmark", *map(str, arguments)])

    return run


@pytest.fixture
def import_rows(benchmark, tmp_path):
    """Return a function that imports rows as the benchmark ``mini``."""

    def run(rows, *arguments, adapter="swebench"):
        file = write_rows(tmp_path / "rows.jsonl", rows)
        return benchmark("import", "mini", "--adapter", adapter, "--from", file, *arguments)

    return run
