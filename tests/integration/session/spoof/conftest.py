"""Fixtures: episodes in local sandboxes."""

import shutil

import pytest

from tests.fakes.attacks import model


@pytest.fixture
def bubblewrap():
    """The kind "bubblewrap", or "none" if bubblewrap is not installed."""
    return "bubblewrap" if shutil.which("bwrap") else "none"


@pytest.fixture
def play(bubblewrap):
    """``await play(changes, **spec)``: an episode of a small task, with these changes."""

    async def play_one(changes, **spec):
        return await model.play(changes, bubblewrap, **spec)

    return play_one
