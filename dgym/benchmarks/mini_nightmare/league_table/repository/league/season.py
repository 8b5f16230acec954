"""A season, day by day."""

from itertools import groupby
from operator import attrgetter

from league.results import read
from league.table import leader, table


class Season:
    """All matches of a season, grouped by day."""

    def __init__(self, text):
        self.matches = read(text)
        self.days = dict(groupby(self.matches, key=attrgetter("day")))

    def standings(self):
        """The table after the last day: team, matches, goals and points."""
        return [
            (row.team, row.played, "{}:{}".format(row.scored, row.conceded), row.points)
            for row in table(self.matches)
        ]

    def goals(self, day):
        """How many goals fell on a day."""
        return sum(match.home_goals + match.away_goals for match in self.days.get(day, ()))

    def dullest(self):
        """The day with the fewest goals; of several the first."""
        return min(self.days, key=self.goals)

    def leaders(self):
        """Who was at the top after each day."""
        seen = []
        result = {}
        for day, matches in self.days.items():
            seen.extend(matches)
            result[day] = leader(seen)
        return result

    def weeks_at_the_top(self, team):
        """For how many days a team was leading."""
        return sum(1 for name in self.leaders().values() if name == team)
