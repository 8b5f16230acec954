"""What ``dgym report`` computes: episodes read from results directories, figures over them, two runs compared."""

from dgym.results.report.arms import ArmGroup, ArmPair
from dgym.results.report.comparison import Comparison, Difference, TaskPair, compare
from dgym.results.report.figures import LABELS, LabelGroup, Report, make_report
from dgym.results.report.groups import Group, PassAtK, Price, cost_of, grouped
from dgym.results.report.provenance import ProvenanceDifference, sentence
from dgym.results.report.reading import Call, EpisodeRow, Run, Stages, read_run, row_of, run_of
from dgym.results.report.statistics import TOO_FEW, Interval, wilson

__all__ = [
    "LABELS",
    "TOO_FEW",
    "ArmGroup",
    "ArmPair",
    "Call",
    "Comparison",
    "Difference",
    "EpisodeRow",
    "Group",
    "Interval",
    "LabelGroup",
    "PassAtK",
    "Price",
    "ProvenanceDifference",
    "Report",
    "Run",
    "Stages",
    "TaskPair",
    "compare",
    "cost_of",
    "grouped",
    "make_report",
    "read_run",
    "row_of",
    "run_of",
    "sentence",
    "wilson",
]
