"""Writes figures to files, the same bytes for the same results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dgym.cli.output import UsageFailure
from dgym.cli.plots.arms import arms_of
from dgym.errors import PluginError
from dgym.results.report import Price, Run

FIGURES = ("resolve-rate", "steps", "cost", "stages", "tools")
_SUFFIXES = (".svg", ".png")
_SETTINGS: Any = {
    "svg.hashsalt": "dgym",
    "text.parse_math": False,  # a name with two dollar signs is no formula
    "font.size": 10,
    "hatch.linewidth": 0.6,
}


def draw_figures(
    run: Run, target: str, names: Sequence[str], *, confidence: float, prices: Mapping[str, Price]
) -> tuple[list[Path], int]:
    """Draw the figures of these names, or all; returns their files and how many episodes are left out.

    Into a directory, which is made where ``target`` ends in a slash, each is written as ``NAME.svg``. A single named
    figure is else written to ``target``; several each beside it, as ``target-NAME``.

    Raises:
        UsageFailure: ``target`` is neither a directory nor ends in .svg or .png, or cannot be written; or there is
            nothing to draw.
        PluginError: matplotlib is not installed.
    """
    path = Path(target)
    directory = path.is_dir() or target.endswith("/")
    if not directory and path.suffix not in _SUFFIXES:
        remedy = f"the name must end in {' or '.join(_SUFFIXES)}, or be that of a directory, with a slash if it is new"
        raise UsageFailure(f"--plot {target}: {remedy}")
    try:
        import matplotlib as mpl

        from dgym.cli.plots import figures
    except ImportError as error:
        raise PluginError(f"--plot needs matplotlib: pip install 'dgym[plot]' ({error})") from None
    arms = arms_of(run)
    if not arms:
        raise UsageFailure("--plot: none of the episodes has a result yet")
    if directory:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageFailure(f"--plot {target}: {error.strerror or error}") from None
    written = []
    with mpl.rc_context(_SETTINGS):
        for name in names or FIGURES:
            if directory:
                place = path / f"{name}.svg"
            else:
                place = path if len(names) == 1 else path.with_name(f"{path.stem}-{name}{path.suffix}")
            figure: figures.Draw = getattr(figures, name.replace("-", "_"))
            # Neither a date nor a version: the same results give the same file.
            metadata = {"Date": None, "Creator": None} if place.suffix == ".svg" else {"Software": None}
            try:
                figure(arms, confidence, prices).savefig(place, metadata=metadata, dpi=150)
            except OSError as error:
                raise UsageFailure(f"--plot {place}: {error.strerror or error}") from None
            written.append(place)
    kept = sum(len(arm.records) for arm in arms)
    return written, len(run.records) - kept
