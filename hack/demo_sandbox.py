"""Prints the sandbox of ``make demo``: bubblewrap if it works, else none.

Running without a sandbox is acceptable, because the demo replays recorded actions on the tasks that come with dgym. It
only runs code of this checkout.
"""

import sys

from dgym.sandbox.local import bubblewrap_problem

if problem := bubblewrap_problem():
    print(f"bubblewrap does not work here ({problem}): no isolation (--sandbox none) for the demo", file=sys.stderr)
print("none" if problem else "bubblewrap")
