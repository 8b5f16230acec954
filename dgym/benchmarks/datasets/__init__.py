"""Benchmarks from data sets: import rows, and convert them to DebugTasks and an EpisodeSet.

An adapter (a plugin of the entry point group ``dgym.benchmarks``) reads the rows of one kind of data set and converts
each to a ``Row``. All other code is shared by the adapters.
"""

from dgym.benchmarks.datasets._adapter import (
    Adapter,
    Checkouts,
    Fields,
    ImageNames,
    Row,
    RowError,
    adapter_names,
    load_adapter,
    make_set,
    make_tasks,
    select,
)
from dgym.benchmarks.datasets._library import (
    HEALTHY,
    NOT_CHECKED,
    STATES,
    HealthRun,
    Imported,
    TaskHealth,
    add_health,
    assess_health,
    import_rows,
    imported,
    open_imported,
    read_health,
)
from dgym.benchmarks.datasets.swebench import (
    names_test_files,
    without_test_files,
    without_test_patch,
)

__all__ = [
    "HEALTHY",
    "NOT_CHECKED",
    "STATES",
    "Adapter",
    "Checkouts",
    "Fields",
    "HealthRun",
    "ImageNames",
    "Imported",
    "Row",
    "RowError",
    "TaskHealth",
    "adapter_names",
    "add_health",
    "assess_health",
    "import_rows",
    "imported",
    "load_adapter",
    "make_set",
    "make_tasks",
    "names_test_files",
    "open_imported",
    "read_health",
    "select",
    "without_test_files",
    "without_test_patch",
]
