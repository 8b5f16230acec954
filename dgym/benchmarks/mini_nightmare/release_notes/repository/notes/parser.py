"""From markup to sections.

    = 1.2                     a section
    * Faster start            an entry of it
      on old machines         its continuation
    %define API interface     an abbreviation, from here to the end of the file
"""

from notes.settings import Settings


class Section:
    """A title and its entries."""

    def __init__(self, title):
        self.title = title
        self.entries = []


class Parser:
    """Reads one document."""

    def __init__(self, settings):
        self.settings = settings
        self.sections = []

    def feed(self, text):
        """Read all lines and return the sections."""
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("%"):
                self._directive(line[1:].split(None, 2), number)
            elif line.startswith("= "):
                self.sections.append(Section(line[2:].strip()))
            elif line.startswith("* "):
                self._entry(line[2:], number)
            elif line.strip():
                self._continuation(line, number)
        return self.sections

    def _directive(self, words, number):
        if len(words) != 3 or words[0] != "define":
            raise ValueError("line {}: expected '%define short long'".format(number))
        self.settings.abbreviations[words[1]] = words[2]

    def _entry(self, text, number):
        if not self.sections:
            raise ValueError("line {}: an entry before the first section".format(number))
        self.sections[-1].entries.append(self._words(text))

    def _continuation(self, line, number):
        if not self.sections or not self.sections[-1].entries:
            raise ValueError("line {}: nothing to continue".format(number))
        self.sections[-1].entries[-1] += " " + self._words(line)

    def _words(self, text):
        return " ".join(self.settings.expand(word) for word in text.split())


def parse(text, settings=Settings()):
    """The sections of a document."""
    return Parser(settings).feed(text)
