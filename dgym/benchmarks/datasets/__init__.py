"""Benchmarks that come as data sets: rows from elsewhere, imported once, made into DebugTasks and an EpisodeSet.

An adapter (a plugin of the group ``dgym.benchmarks``) reads the rows of one kind of data set and says what each of them
means, as a ``Row``. Everything else is done once for all of them.
"""

from dgym.benchmarks.datasets.adapter import (
    GROUP,
    Adapter,
    Fields,
    ImageNames,
    Row,
    RowError,
    adapter_names,
    load_adapter,
)
from dgym.benchmarks.datasets.checkouts import Checkouts
from dgym.benchmarks.datasets.health import (
    HEALTHY,
    NOT_CHECKED,
    STATES,
    HealthRun,
    TaskHealth,
    add_health,
    judge_health,
    read_health,
)
from dgym.benchmarks.datasets.library import Imported, import_rows, imported, open_imported
from dgym.benchmarks.datasets.registry import ImageSizes, ask_registries
from dgym.benchmarks.datasets.scripts import (
    EvaluationParts,
    command_between_markers,
    names_test_files,
    with_exit_status,
    without_test_files,
    without_test_patch,
)
from dgym.benchmarks.datasets.selection import select
from dgym.benchmarks.datasets.tasks import INSTANCE_ANNOTATION, make_set, make_tasks

__all__ = [
    "GROUP",
    "HEALTHY",
    "INSTANCE_ANNOTATION",
    "NOT_CHECKED",
    "STATES",
    "Adapter",
    "Checkouts",
    "EvaluationParts",
    "Fields",
    "HealthRun",
    "ImageNames",
    "ImageSizes",
    "Imported",
    "Row",
    "RowError",
    "TaskHealth",
    "adapter_names",
    "add_health",
    "ask_registries",
    "command_between_markers",
    "import_rows",
    "imported",
    "judge_health",
    "load_adapter",
    "make_set",
    "make_tasks",
    "names_test_files",
    "open_imported",
    "read_health",
    "select",
    "with_exit_status",
    "without_test_files",
    "without_test_patch",
]
