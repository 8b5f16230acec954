"""A model of the results store: results that are stored once, recorded steps, and outages."""

import asyncio

GIVEN_UP = "given up"
"""Stored in the place of a result when the attempt was abandoned before it had a result."""


class GivenUp(Exception):
    """The attempt was abandoned. Its outcome is not stored any more."""


class ResultsStore:
    """Files by the UID of an episode and the number of an attempt."""

    def __init__(self):
        self.away_until = 0.0
        self.steps = {}
        """Number of recorded steps of each attempt."""
        self._files = {}

    @property
    def answers(self):
        """True if the store answers now."""
        return asyncio.get_running_loop().time() >= self.away_until

    @property
    def results(self):
        """The stored results."""
        return {key: found for key, found in self._files.items() if found is not GIVEN_UP}

    def get(self, key):
        """Return the stored result, or None."""
        return self.results.get(key)

    def create(self, key, result):
        """Store the result unless there is one. Raise ``GivenUp`` if the attempt was abandoned."""
        if self._files.setdefault(key, result) is GIVEN_UP:
            raise GivenUp

    def give_up(self, key):
        """Return the stored result. If there is none, abandon the attempt and return None."""
        found = self._files.setdefault(key, GIVEN_UP)
        return None if found is GIVEN_UP else found

    def record(self, key, number):
        """Record the attempt's steps up to ``number``."""
        self.steps[key] = max(number, self.steps.get(key, 0))
