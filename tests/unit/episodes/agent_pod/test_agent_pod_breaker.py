"""Tests of the circuit breaker of a model, with a fake clock."""

import contextlib

import pytest

from dgym.episodes.agent_pod._assignments import FAILURES, LONGEST_PAUSE_SECONDS, Breakers
from dgym.errors import ModelUnavailable
from dgym.wire.assignments import ModelOutage


class World:
    """A model that is unavailable until ``back``. ``asked`` counts the requests that the breaker let through."""

    def __init__(self, back):
        self.now, self.back, self.asked = 0.0, back, 0
        self.breakers = Breakers(lambda: self.now)

    def play(self, episode, model="m"):
        with contextlib.suppress(ModelUnavailable), self.breakers.guard(model, episode):
            self.asked += 1
            if self.now < self.back:
                raise ModelUnavailable("model m: server error")
            self.breakers.answered(model)
            return True
        return False


def test_a_breaker_limits_the_probes_of_an_outage_and_closes_at_the_first_answer():
    world = World(back=7200)
    finished = set()
    while len(finished) < 16 and world.now < 3 * 3600:
        for number in range(16):
            if number not in finished and world.play(object()):
                finished.add(number)
        world.now += 10
    assert len(finished) == 16
    assert world.now <= 7200 + LONGEST_PAUSE_SECONDS + 20
    assert world.asked - 16 < FAILURES + 10 + 2 * 7200 / LONGEST_PAUSE_SECONDS
    assert dict(world.breakers.outages()) == {"m": False}


def test_an_open_breaker_affects_only_its_model():
    world = World(back=100)
    for _ in range(FAILURES):
        world.play(object())
    assert dict(world.breakers.outages()) == {"m": True}
    message = "server error; no episode begins with it until a probe is answered"
    with pytest.raises(ModelUnavailable, match=message), world.breakers.guard("m", object()):
        pass
    with world.breakers.guard("other", object()):
        pass


def test_the_report_names_the_models_that_are_out_and_whether_a_probe_is_due():
    world = World(back=100)
    for _ in range(FAILURES):
        world.play(object())
    out = ModelOutage(model="m", message="model m: server error")
    assert world.breakers.report() == (out,)
    world.now = 30
    due = ModelOutage(model="m", message="model m: server error", probe=True)
    assert world.breakers.report() == (due,)
    with world.breakers.guard("m", object()):
        assert world.breakers.report() == (out,)
    world.now = 200
    assert world.play(object())
    assert world.breakers.report() == ()


def test_one_answer_ends_a_row_of_failures():
    world = World(back=1)
    for _ in range(FAILURES - 1):
        world.play(object())
    world.now = 2
    world.play(object())
    world.back = 100
    world.play(object())
    assert dict(world.breakers.outages()) == {"m": False}


def test_only_one_episode_probes_and_one_that_left_unasked_makes_room_for_another():
    world = World(back=10_000)
    for _ in range(FAILURES):
        world.play(object())
    world.now = 400
    with world.breakers.guard("m", object()), pytest.raises(ModelUnavailable), world.breakers.guard("m", object()):
        pass
    with world.breakers.guard("m", object()):
        pass
