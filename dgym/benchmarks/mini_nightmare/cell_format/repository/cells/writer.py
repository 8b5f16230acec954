"""Writing cells. Tables repeat their values, so what was written once is kept."""

from cells.styles import Style


class Writer:
    """Writes cells in one style."""

    def __init__(self, style=None, keep=10000):
        self.style = style or Style()
        self.keep = keep
        self.saved = 0
        self._written = {}

    def cell(self, value):
        """A value as text."""
        try:
            text = self._written[value]
        except KeyError:
            text = self._remember(value)
        except TypeError:
            return self.style.write(value)
        else:
            self.saved += 1
        return text

    def _remember(self, value):
        text = self.style.write(value)
        if len(self._written) >= self.keep:
            self._written.clear()
        self._written[value] = text
        return text

    def row(self, values):
        """A row as a list of texts."""
        return [self.cell(value) for value in values]
