"""What ``dgym report`` computes: episodes read from results directories, figures over them, two runs compared."""

from dgym.results.report.comparison import Comparison, Difference, TaskPair, compare
from dgym.results.report.figures import Group, Price, Report, cost_of, make_report
from dgym.results.report.reading import Call, Record, Run, Stages, read_run

__all__ = [
    "Call",
    "Comparison",
    "Difference",
    "Group",
    "Price",
    "Record",
    "Report",
    "Run",
    "Stages",
    "TaskPair",
    "compare",
    "cost_of",
    "make_report",
    "read_run",
]
