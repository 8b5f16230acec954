"""Rows and columns of values."""

from copy import copy


class Grid:
    """A rectangular table."""

    def __init__(self, rows):
        self.rows = [list(row) for row in rows]
        self.title = ""

    @property
    def width(self):
        """Number of columns."""
        return len(self.rows[0]) if self.rows else 0

    def get(self, row, column):
        """One value."""
        return self.rows[row][column]

    def set(self, row, column, value):
        """Replace one value."""
        self.rows[row][column] = value

    def insert_row(self, at, values=None):
        """Add a row, empty unless values are given."""
        values = list(values) if values is not None else [None] * self.width
        if len(values) != self.width and self.rows:
            raise ValueError("a row needs {} values".format(self.width))
        self.rows = self.rows[:at] + [values] + self.rows[at:]

    def delete_row(self, at):
        """Remove a row and return it."""
        gone = self.rows[at]
        self.rows = self.rows[:at] + self.rows[at + 1:]
        return gone

    def sort(self, column, reverse=False):
        """Order the rows by a column."""
        self.rows = sorted(self.rows, key=lambda row: row[column], reverse=reverse)

    def snapshot(self):
        """The grid as it is now."""
        twin = copy(self)
        twin.rows = list(self.rows)
        return twin
