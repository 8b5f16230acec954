"""Tests of data sets from archives and from a commit of a git repository."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.kin import exercises


@pytest.fixture
def import_exercises(benchmark):
    def run(source, *arguments):
        return benchmark("import", "exercism", "--from", source, *arguments)

    return run


@pytest.mark.parametrize("kind", ["gztar", "zip"])
def test_archives_are_unpacked(import_exercises, benchmark, tmp_path, kind):
    exercises(tmp_path / "made" / "python-1234")
    archive = shutil.make_archive(tmp_path / "track", kind, tmp_path / "made", "python-1234")
    assert "imported 1 instances" in import_exercises(archive).output
    assert "leap_test.py" in benchmark("render", "exercism").stdout


def test_a_damaged_archive_and_one_without_exercises_are_refused(import_exercises, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("a" * 100_000)
    archive = shutil.make_archive(tmp_path / "other-things", "gztar", tmp_path / "other")
    assert "no directory in it has a .meta/config.json" in import_exercises(archive).output
    Path(archive).write_bytes(Path(archive).read_bytes()[:150])
    done = import_exercises(archive)
    assert done.exit_code == 2
    assert "other-things.tar.gz" in done.output


@pytest.mark.parametrize("url", ["http://a..b/x", "http://[::1/x", "http://127.0.0.1:port/x", "http://a b/x"])
def test_an_invalid_url_is_refused(import_exercises, url):
    done = import_exercises(url)
    assert done.exit_code == 2
    assert re.search(r"^Error: .*\bURL\b.* is not valid", done.output)


def test_an_invalid_url_of_a_git_repository_is_refused(import_exercises):
    done = import_exercises("http://[::1/x", "--revision", "0" * 40)
    assert done.exit_code == 2
    assert done.output == "Error: source: its URL is not valid: Invalid IPv6 URL\n"


@pytest.fixture
def repository(tmp_path):
    """Yield the address of a git repository, and the commit before its last commit."""
    root = tmp_path / "track"
    exercises(root)

    def git(*words):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        return subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True, text=True).stdout

    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "one")):
        git(*words)
    commit = git("rev-parse", "HEAD").strip()
    shutil.rmtree(root / "exercises")
    git("commit", "-qam", "two")
    git("update-server-info")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/track/.git", commit
        server.shutdown()
        thread.join()


def test_a_commit_of_a_git_repository_is_imported(import_exercises, benchmark, repository):
    url, commit = repository
    done = import_exercises(url.replace("//", "//me:secret@"), "--revision", commit)
    assert "imported 1 instances" in done.output, done.output
    assert "secret" not in done.output
    assert json.loads(benchmark("show", "exercism", "--output", "json").stdout)["source"] == f"{url}@{commit}"


def test_a_revision_must_be_the_full_id_of_an_existing_commit(import_exercises, repository):
    url, _ = repository
    assert "give a full commit id" in import_exercises(url, "--revision", "main").output
    done = import_exercises(url, "--revision", "0" * 40)
    assert done.exit_code == 2
    assert "does not exist" in done.output
