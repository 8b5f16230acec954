import pytest

from dgym.session._execution import EpisodeLimits
from dgym.wire import EndReason


@pytest.mark.parametrize(
    ("limits", "steps", "rewrites", "expected"),
    [
        (EpisodeLimits(max_steps=3), 2, 99, None),
        (EpisodeLimits(max_steps=3), 3, 0, EndReason.STEP_LIMIT_REACHED),
        (EpisodeLimits(max_steps=3, max_rewrites=2), 2, 2, EndReason.REWRITE_LIMIT_REACHED),
        (EpisodeLimits(max_steps=3, max_rewrites=2), 3, 2, EndReason.REWRITE_LIMIT_REACHED),
        (EpisodeLimits(max_steps=3, max_rewrites=0), 1, 0, None),
        (EpisodeLimits(max_steps=3, max_rewrites=0), 1, 1, EndReason.REWRITE_LIMIT_REACHED),
    ],
)
def test_which_limit_ends_the_episode(limits, steps, rewrites, expected):
    assert limits.reached(steps=steps, rewrites=rewrites) == expected
