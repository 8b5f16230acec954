from random import Random

import pytest

from dgym_operator.app_watches import Watches
from dgym_operator.kube import WatchSettings
from dgym_operator.settings import Settings


@pytest.fixture
def watches(client, world, clock):
    return Watches(client, world, Settings(), clock, Random(1))


def test_what_was_never_listed_is_not_ready(watches):
    assert watches.check() == "episodes in all namespaces have not been listed yet"


def test_a_kind_of_which_nothing_is_heard_is_ready_until_its_stream_must_have_been_opened_anew(watches, clock):
    for reflector in watches.by_name.values():
        reflector.synced.set()
    # A stream may be silent for so long; then it is dropped and opened again, with some pauses.
    clock.seconds += 2 * WatchSettings().silence_seconds
    assert watches.check() is None
    clock.seconds += 1
    assert watches.check() == "episodes in all namespaces were last heard of 181 s ago"
