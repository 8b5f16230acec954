"""Tables with columns as wide as they need to be."""

from cells.writer import Writer


def layout(header, rows, style=None):
    """A table as lines: the header, a rule, the rows."""
    writer = Writer(style)
    written = [writer.row(row) for row in rows]
    columns = list(zip(header, *written))
    widths = [max(len(text) for text in column) for column in columns]
    lines = [_line(header, widths), "-+-".join("-" * width for width in widths)]
    lines.extend(_line(row, widths) for row in written)
    return lines


def _line(texts, widths):
    return " | ".join(text.ljust(width) for text, width in zip(texts, widths)).rstrip()


def to_csv(header, rows, style=None):
    """The same as comma-separated values."""
    writer = Writer(style)
    lines = [",".join(header)]
    lines.extend(",".join(_quoted(text) for text in writer.row(row)) for row in rows)
    return "\n".join(lines) + "\n"


def _quoted(text):
    if "," in text or '"' in text:
        return '"{}"'.format(text.replace('"', '""'))
    return text
