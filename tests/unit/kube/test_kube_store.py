from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgym.kube import ChangeSource, InformerStore, ObjectChange
from tests.fakes.kube_clocks import ManualClock

Make = Callable[..., Any]
A = ("ns", "a")


@pytest.fixture
def changes(store: InformerStore[Any]) -> list[ObjectChange[Any]]:
    seen: list[ObjectChange[Any]] = []
    store.subscribe(seen.append)
    return seen


def summaries(changes: list[ObjectChange[Any]]) -> list[tuple[str, str, str, str]]:
    def version(item: Any) -> str:
        return "-" if item is None else item.metadata.resource_version

    return [(change.source, change.key[1], version(change.old), version(change.new)) for change in changes]


def test_a_list_then_a_watch(store: InformerStore[Any], thing: Make, changes: list[ObjectChange[Any]]) -> None:
    store.replace([thing("a", 1), thing("b", 2)], "3")
    store.put(thing("a", 4))
    store.remove(thing("b", 5))
    assert [item.metadata.name for item in store] == ["a"]
    assert len(store) == 1
    assert summaries(changes) == [
        (ChangeSource.LIST, "a", "-", "1"),
        (ChangeSource.LIST, "b", "-", "2"),
        (ChangeSource.WATCH, "a", "1", "4"),
        (ChangeSource.WATCH, "b", "5", "-"),
    ]


def test_a_second_list_reports_only_differences(
    store: InformerStore[Any], thing: Make, changes: list[ObjectChange[Any]]
) -> None:
    store.replace([thing("a", 1), thing("b", 2), thing("c", 3)], "3")
    changes.clear()
    store.replace([thing("a", 1), thing("c", 5)], "6")
    assert summaries(changes) == [(ChangeSource.LIST, "c", "3", "5"), (ChangeSource.LIST, "b", "2", "-")]
    assert changes[-1].last.metadata.name == "b"


def test_a_list_of_one_namespace_leaves_the_others_alone(store: InformerStore[Any], thing: Make) -> None:
    store.replace([thing("a", 1, namespace="x")], "1", namespace="x")
    store.replace([thing("b", 1, namespace="y")], "1", namespace="y")
    store.replace([], "2", namespace="x")
    assert [item.metadata.namespace for item in store] == ["y"]


def test_an_unreadable_object_in_a_list_stays_in_the_store(store: InformerStore[Any], thing: Make) -> None:
    store.put(thing("a", 1))
    store.replace([], "5", keep={A})
    assert store.get(A) is not None


# Own writes


def test_an_own_write_is_seen_at_once_and_older_versions_do_not_undo_it(
    store: InformerStore[Any], thing: Make, changes: list[ObjectChange[Any]]
) -> None:
    store.put(thing("a", 1))
    store.assume(thing("a", 9))
    store.put(thing("a", 5))
    store.put(thing("a", 9))
    store.put(thing("a", 10))
    assert summaries(changes) == [
        (ChangeSource.WATCH, "a", "-", "1"),
        (ChangeSource.OWN, "a", "1", "9"),
        (ChangeSource.WATCH, "a", "9", "10"),
    ]


def test_versions_are_compared_as_numbers(store: InformerStore[Any], thing: Make) -> None:
    store.assume(thing("a", 100))
    store.put(thing("a", 99))
    assert store.get(A).metadata.resource_version == "100"


def test_versions_that_are_not_numbers_are_applied_in_order_of_arrival(store: InformerStore[Any], thing: Make) -> None:
    store.assume(thing("a", "zz"))
    store.put(thing("a", "aa"))
    assert store.get(A).metadata.resource_version == "aa"


def test_an_older_response_does_not_replace_a_newer_watch_event(store: InformerStore[Any], thing: Make) -> None:
    store.put(thing("a", 9))
    store.assume(thing("a", 5))
    assert store.get(A).metadata.resource_version == "9"


def test_a_list_from_before_an_own_create_does_not_remove_it(store: InformerStore[Any], thing: Make) -> None:
    store.assume(thing("a", 9))
    store.replace([], "8")
    assert store.get(A) is not None
    store.replace([], "9")
    assert store.get(A) is None


def test_a_list_replaces_objects_that_were_not_written_even_with_lower_versions(
    store: InformerStore[Any], thing: Make
) -> None:
    store.put(thing("a", 900))
    store.put(thing("b", 901))
    store.replace([thing("a", 5)], "6")
    assert [item.metadata.resource_version for item in store] == ["5"]


def test_a_late_answer_does_not_bring_back_what_is_gone(store: InformerStore[Any], thing: Make) -> None:
    store.put(thing("a", 1))
    store.remove(thing("a", 3))
    store.assume(thing("a", 2))
    assert store.get(A) is None
    store.assume(thing("a", 5, uid="another"))
    assert store.get(A).metadata.uid == "another"


def test_an_own_delete_is_seen_at_once_and_stays(
    store: InformerStore[Any], thing: Make, changes: list[ObjectChange[Any]]
) -> None:
    store.put(thing("a", 1))
    store.assume_deleted(A, "uid-a")
    store.put(thing("a", 2))
    store.replace([thing("a", 2)], "2")
    store.remove(thing("a", 3))
    assert summaries(changes) == [(ChangeSource.WATCH, "a", "-", "1"), (ChangeSource.OWN, "a", "1", "-")]


def test_an_object_that_is_gone_stays_until_the_watch_shows_its_end(
    store: InformerStore[Any], thing: Make, changes: list[ObjectChange[Any]]
) -> None:
    store.put(thing("a", 1))
    store.assume_ended(A, "another", lambda _known: thing("a", 9))
    store.assume_ended(A, "uid-a", lambda known: known)
    assert store.get(A).metadata.resource_version == "1"
    store.remove(thing("a", 3))
    assert store.get(A) is None
    assert summaries(changes)[1:] == [(ChangeSource.OWN, "a", "1", "1"), (ChangeSource.WATCH, "a", "3", "-")]


def test_deleting_an_object_spares_its_successor_of_the_same_name(store: InformerStore[Any], thing: Make) -> None:
    store.put(thing("a", 1, uid="old"))
    store.assume(thing("a", 9, uid="new"))
    store.remove(thing("a", 8, uid="old"))
    store.assume_deleted(A, "old")
    assert store.get(A).metadata.uid == "new"


def test_uids_of_deleted_objects_expire(clock: ManualClock, store: InformerStore[Any], thing: Make) -> None:
    for number in range(100):
        store.assume_deleted(("ns", str(number)), f"uid-{number}")
    clock.jump(1000)
    store.assume_deleted(A, "uid-a")
    assert len(store._gone) == 1


# Indexes


def test_an_index_follows_every_change(store: InformerStore[Any], thing: Make) -> None:
    store.put(thing("a", 1, owner="x"))
    owners = store.index(lambda item: [item.owner] if item.owner else [])
    store.put(thing("b", 2, owner="x"))
    assert [item.metadata.name for item in owners["x"]] == ["a", "b"]
    store.put(thing("a", 3, owner="y"))
    assert (owners.count("x"), owners.count("y")) == (1, 1)
    store.put(thing("a", 4))
    store.remove(thing("b", 5))
    assert owners["x"] == ()
    assert not owners.values()


# Any order of events


class World:
    """A server with one name, and a store that is updated by responses, by a watch that lags, and by lists."""

    def __init__(self, thing: Make) -> None:
        self.thing = thing
        self.store: InformerStore[Any] = InformerStore(ManualClock())
        self.history: list[Any] = [None]
        self.uids = 0
        self.watched = 0
        self.announced = 0
        self.answers: list[Any] = []

    @property
    def version(self) -> int:
        return len(self.history) - 1

    def write(self) -> Any:
        now = self.history[-1]
        if now is None:
            self.uids += 1
        self.history.append(self.thing("a", len(self.history), uid=f"uid-{self.uids}"))
        return self.history[-1]

    def own_write(self) -> None:
        self.store.assume(self.write())
        self.announced = self.version

    def own_write_with_a_late_answer(self) -> None:
        self.answers.append(self.write())

    def answer(self) -> None:
        if self.answers:
            item = self.answers.pop(0)
            self.store.assume(item)
            self.announced = max(self.announced, int(item.metadata.resource_version))

    def delete(self) -> None:
        if self.history[-1] is not None:
            self.history.append(None)

    def own_delete(self) -> None:
        now, known = self.history[-1], self.store.get(A)
        # A deletion has the UID that the store showed.
        if now is not None and known is not None and now.metadata.uid == known.metadata.uid:
            self.history.append(None)
            self.store.assume_deleted(A, now.metadata.uid)
            self.announced = self.version

    def watch(self) -> None:
        if self.watched < self.version:
            before = self.history[self.watched]
            self.watched += 1
            now = self.history[self.watched]
            if now is None:
                self.store.remove(self.thing("a", self.watched, uid=before.metadata.uid))
            else:
                self.store.put(now)
            self.announced = max(self.announced, self.watched)

    def list(self) -> None:
        now = self.history[-1]
        self.store.replace([] if now is None else [now], str(self.version))
        self.watched = self.announced = self.version


STEPS = ["write", "own_write", "own_write_with_a_late_answer", "answer", "delete", "own_delete", "watch", "list"]


@given(steps=st.lists(st.sampled_from(STEPS), max_size=40))
def test_the_store_never_returns_an_older_state_and_converges(thing: Make, steps: list[str]) -> None:
    world = World(thing)
    for step in steps:
        getattr(world, step)()
        assert world.store.get(A) in world.history[world.announced :]
    while world.watched < world.version:
        world.watch()
    assert world.store.get(A) == world.history[-1]
    while world.answers:
        world.answer()
    assert world.store.get(A) == world.history[-1]
