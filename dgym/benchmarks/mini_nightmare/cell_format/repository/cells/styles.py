"""How values of each type are written."""

from datetime import date


class Style:
    """The wishes of a reader."""

    def __init__(self, yes="yes", no="no", decimals=2, empty="-"):
        self.yes = yes
        self.no = no
        self.decimals = decimals
        self.empty = empty

    def write(self, value):
        """A value as text."""
        if value is None or value == "":
            return self.empty
        if isinstance(value, bool):
            return self.yes if value else self.no
        if isinstance(value, float):
            return "{:.{}f}".format(value, self.decimals)
        if isinstance(value, date):
            return value.strftime("%d.%m.%Y")
        return str(value)
