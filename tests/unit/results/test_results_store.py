import asyncio
import json
import threading

import pytest

from dgym.results import (
    Attempt,
    DirectoryStore,
    EpisodeFolder,
    Record,
    StoredResult,
    StoreUnavailable,
    TrajectoryHeader,
    episode_path,
)
from dgym.results._attempts import INLINE_PATCH_LIMIT
from dgym.wire import EndReason


def result(**fields):
    return StoredResult(resolved=True, reason=EndReason.RESOLVED, score=3, max_score=3, **fields)


class Episode(EpisodeFolder):
    """Folder of an episode that creates attempts and stores results in the same way as `dgym run`."""

    def __init__(self, root, path):
        super().__init__(root / path)
        self._store = DirectoryStore(root, local=True)
        self._place = path

    def new_attempt(self):
        return Attempt(self.path / str(self._store.new_attempt(self._place)))

    def save(self, attempt, result):
        return asyncio.run(Record(self._store, f"{self._place}/{attempt.number}").finish(result))


def folder(tmp_path, *, namespace="", episode="one", digest="abc"):
    return Episode(tmp_path, episode_path(namespace, episode, digest))


def test_the_layout_is_namespace_episode_digest_attempt(tmp_path):
    attempt = folder(tmp_path).new_attempt()
    assert attempt.path == tmp_path / "local" / "one" / "abc" / "1"
    assert folder(tmp_path, namespace="team").new_attempt().path.parts[-4] == "team"


def test_attempts_count_up_and_the_newest_result_counts(tmp_path):
    episode = folder(tmp_path)
    first = episode.new_attempt()
    episode.save(first, result(message="first"))
    second = episode.new_attempt()
    assert (first.number, second.number) == (1, 2)
    assert episode.result().message == "first"
    episode.save(second, result(message="second"))
    assert episode.result().message == "second"
    for _ in range(9):
        last = episode.new_attempt()
    assert last.number == 11
    assert [attempt.number for attempt in episode.attempts()] == list(range(1, 12))


def test_reading_does_not_create_files(tmp_path):
    episode = folder(tmp_path / "results")
    assert episode.result() is None
    assert episode.attempts() == []
    assert not (tmp_path / "results").exists()


def test_saving_stores_the_patch_and_the_address_of_the_result(tmp_path):
    episode = folder(tmp_path)
    attempt = episode.new_attempt()
    stored = episode.save(attempt, result(patch="--- a/x\n+++ b/x\n", episode="one"))
    assert attempt.patch.read_text() == "--- a/x\n+++ b/x\n"
    assert attempt.load() == stored
    on_disk = json.loads(attempt.result.read_text())
    assert on_disk["reason"] == "Resolved"
    assert on_disk["maxScore"] == 3
    assert on_disk["resultURI"] == attempt.path.as_uri()
    assert sorted(path.name for path in attempt.path.iterdir()) == ["patch.diff", "result.json"]


def test_a_large_patch_is_only_in_its_own_file(tmp_path):
    episode = folder(tmp_path)
    attempt = episode.new_attempt()
    patch = "+" * (INLINE_PATCH_LIMIT + 1)
    assert episode.save(attempt, result(patch=patch)).patch == ""
    assert attempt.patch.stat().st_size == len(patch)


def test_an_unreadable_result_counts_as_none(tmp_path):
    attempt = folder(tmp_path).new_attempt()
    attempt.result.write_text('{"resolved": tr')
    assert attempt.load() is None
    assert folder(tmp_path).result() is None


@pytest.mark.parametrize("name", ["..", ".", "../../x", "a/b", "/etc", "", "..//.."])
def test_names_cannot_leave_the_results(tmp_path, name):
    path = folder(tmp_path / "results", namespace=name, episode=name, digest=name).new_attempt().path
    assert (tmp_path / "results") in path.resolve().parents
    assert len(path.relative_to(tmp_path / "results").parts) == 4


def test_concurrent_attempts_get_different_directories(tmp_path):
    paths = []
    episode = folder(tmp_path)
    threads = [threading.Thread(target=lambda: paths.append(episode.new_attempt().path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 8


async def test_the_whole_attempt_is_timed_by_the_process_that_began_it(tmp_path):
    store = DirectoryStore(tmp_path, local=True)
    begun, lost = (Record(store, f"n/e/d/{store.new_attempt('n/e/d')}") for _ in range(2))
    begun.begin(TrajectoryHeader())
    assert isinstance((await begun.finish(result())).wall_seconds, float)
    assert (await lost.finish(result())).wall_seconds is None


async def test_a_directory_that_cannot_be_written_fails_a_local_run_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable):
        await Record(DirectoryStore(tmp_path / "file", local=True), "n/e/d/1").finish(result())
