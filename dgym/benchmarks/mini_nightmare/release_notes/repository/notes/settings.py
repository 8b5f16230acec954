"""How notes are rendered."""


class Settings:
    """Bullet, width of a line, and the abbreviations that are written out."""

    def __init__(self, bullet="-", width=60, abbreviations=None):
        self.bullet = bullet
        self.width = width
        self.abbreviations = dict(abbreviations or {})

    def expand(self, word):
        """A word, written out if it is an abbreviation; punctuation stays."""
        bare = word.rstrip(".,;:!?")
        return self.abbreviations.get(bare, bare) + word[len(bare):]
