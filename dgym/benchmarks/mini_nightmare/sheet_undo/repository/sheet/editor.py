"""Changes that can be taken back."""

from contextlib import contextmanager

from sheet.grid import Grid
from sheet.history import History


class Editor:
    """A grid with undo."""

    def __init__(self, rows, limit=100):
        self.grid = Grid(rows)
        self.history = History(limit)

    @contextmanager
    def change(self):
        """Everything inside is one step of undo; an error takes it back."""
        before = self.grid.snapshot()
        try:
            yield self.grid
        except Exception:
            self.grid = before
            raise
        self.history.remember(before)

    def type(self, row, column, value):
        """Type into a cell."""
        with self.change() as grid:
            grid.set(row, column, value)

    def fill(self, column, values):
        """Fill a column from the top."""
        with self.change() as grid:
            for row, value in enumerate(values):
                grid.set(row, column, value)

    def sort(self, column, reverse=False):
        """Order the rows."""
        with self.change() as grid:
            grid.sort(column, reverse)

    def delete(self, row):
        """Remove a row."""
        with self.change() as grid:
            grid.delete_row(row)

    def undo(self):
        """Take back the last change."""
        self.grid = self.history.back(self.grid)

    def redo(self):
        """Make it again."""
        self.grid = self.history.forward(self.grid)
