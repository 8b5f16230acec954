"""From sections to text."""

import textwrap

from notes.parser import parse
from notes.settings import Settings


def render(sections, settings=None):
    """Sections as plain text, newest first as they stand."""
    settings = settings or Settings()
    lines = []
    for section in sections:
        lines.append(section.title)
        for entry in section.entries:
            lines.extend(_wrapped(entry, settings))
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _wrapped(entry, settings):
    indent = " " * (len(settings.bullet) + 1)
    return textwrap.wrap(
        entry, settings.width, initial_indent=settings.bullet + " ", subsequent_indent=indent
    )


def render_all(documents):
    """Every document of a project, each by itself, separated by a rule."""
    return "-----\n".join(render(parse(text)) for text in documents)
