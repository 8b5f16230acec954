"""Tests of the pages of a trajectory."""

from dgym.sidecar._attempt import trajectory_page, utf8
from dgym.wire import Observation, Step, ToolCall
from dgym.wire.http import TRAJECTORY_PAGE_LIMIT


class Recorded:
    """A session whose steps have observations of these sizes."""

    def __init__(self, *sizes):
        call = ToolCall(tool="bash")
        self._steps = [
            Step(seq=seq, call=call, observation=Observation(text="x" * size)) for seq, size in enumerate(sizes)
        ]

    def trajectory(self, *, start):
        return self._steps[start:]


def pages(session):
    found, following = [], 0
    while following is not None:
        page = trajectory_page(session, following)
        found.append([step.seq for step in page.steps])
        following = page.next
    return found


def test_a_short_trajectory_is_one_page():
    assert pages(Recorded(10, 20, 30)) == [[0, 1, 2]]
    assert pages(Recorded()) == [[]]
    assert trajectory_page(Recorded(10, 20), 5).steps == ()


def test_pages_are_bounded_and_leave_nothing_out():
    third = TRAJECTORY_PAGE_LIMIT // 3
    assert pages(Recorded(third, third, third, 10, third)) == [[0, 1], [2, 3, 4]]


def test_a_step_larger_than_a_page_is_a_page_of_its_own():
    assert pages(Recorded(10, 2 * TRAJECTORY_PAGE_LIMIT, 10)) == [[0], [1], [2]]


def test_text_that_is_not_utf8_is_replaced_by_question_marks():
    assert utf8("a\ud800é") == "a?é"
