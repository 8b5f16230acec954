"""Comparison of the golden files with the current output, and their update."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.golden import outputs

FILES = Path(__file__).parent / "texts"
OUTPUTS = {
    "chart": outputs.chart,
    "help": outputs.command_help,
    "pods": outputs.pods,
    "walkthroughs": outputs.walkthroughs,
}
"""Functions for the current output, by the directory of the golden files."""
_SHOWN_LINES = 60


def differences(name: str, wanted: Mapping[str, str], *, write: bool = False) -> Iterator[tuple[str, str]]:
    """Golden files that differ from ``wanted``, with the difference. ``write`` updates them."""
    held = {str(path.relative_to(FILES)) for path in FILES.rglob("*") if path.is_file()}
    for path in sorted(wanted.keys() | {each for each in held if each.partition("/")[0].partition(".")[0] == name}):
        before, after = FILES / path, wanted.get(path, "")
        text = before.read_text("utf-8") if path in held else ""
        if text == after:
            continue
        lines = difflib.unified_diff(text.splitlines(), after.splitlines(), "golden", "now", lineterm="", n=1)
        shown = list(lines)
        more = [f"… {len(shown) - _SHOWN_LINES} more lines"] if len(shown) > _SHOWN_LINES else []
        yield path, "\n".join(shown[:_SHOWN_LINES] + more)
        if write and path in wanted:
            before.parent.mkdir(parents=True, exist_ok=True)
            before.write_text(after, "utf-8")
        elif write:
            before.unlink()
