"""Episodes in local sandboxes."""

import shutil

import pytest

from tests.fakes.attacks import model


@pytest.fixture
def bubblewrap():
    """The kind of sandbox that isolates, or the one that every machine has."""
    return "bubblewrap" if shutil.which("bwrap") else "none"


@pytest.fixture
def play(bubblewrap):
    """``await play(changes, **spec)``: an episode of the small task with these changes."""

    async def play_one(changes, **spec):
        return await model.play(changes, bubblewrap, **spec)

    return play_one
