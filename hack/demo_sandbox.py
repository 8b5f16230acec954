"""Prints the sandbox of ``make demo``: bubblewrap where it works, else none.

The demo's episodes replay recorded actions on the tasks that come with dgym, so no code runs that this checkout does
not hold already.
"""

import sys

from dgym.sandbox.local import bubblewrap_problem

if problem := bubblewrap_problem():
    print(f"bubblewrap does not work here ({problem}): no isolation (--sandbox none) for the demo", file=sys.stderr)
print("none" if problem else "bubblewrap")
