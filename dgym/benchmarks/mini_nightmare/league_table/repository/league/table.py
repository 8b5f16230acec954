"""The table: points, goals, and who is ahead of whom."""


class Row:
    """What a team has reached."""

    def __init__(self, team):
        self.team = team
        self.played = self.points = self.scored = self.conceded = 0

    def add(self, scored, conceded):
        """Count a match."""
        self.played += 1
        self.scored += scored
        self.conceded += conceded
        if scored > conceded:
            self.points += 3
        elif scored == conceded:
            self.points += 1

    def rank(self):
        """Sorts the better team first; the alphabet decides between equals."""
        return (-self.points, self.conceded - self.scored, -self.scored, self.team)


def table(matches):
    """Rows by rank."""
    rows = {}
    for match in matches:
        rows.setdefault(match.home, Row(match.home)).add(match.home_goals, match.away_goals)
        rows.setdefault(match.away, Row(match.away)).add(match.away_goals, match.home_goals)
    return sorted(rows.values(), key=Row.rank)


def leader(matches):
    """The team at the top, or None before the first match."""
    rows = table(matches)
    return rows[0].team if rows else None
