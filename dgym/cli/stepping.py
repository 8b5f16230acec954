"""``dgym run --debug``: Python's debugger after each step."""

import bdb
import pdb  # noqa: T100 - this is what the option is for
import sys

from dgym.wire import Step
from dgym.worker.jobs import Job


def stop_after_step(job: Job, step: Step) -> None:
    """Stop with ``job`` and ``step`` at hand; ``c`` goes on to the next step, ``q`` interrupts the run."""
    tool = step.call.tool if step.call is not None else "reset"
    print(f"{job.episode}: step {step.seq} ({tool}); look at step.call and step.observation.text; c goes on, q quits")
    debugger = pdb.Pdb(nosigint=True, readrc=False)
    debugger.prompt = "(dgym) "
    try:
        _stand(debugger, job, step)
    except bdb.BdbQuit:
        raise KeyboardInterrupt from None
    finally:
        sys.settrace(None)


def _stand(debugger: pdb.Pdb, job: Job, step: Step) -> None:
    """The frame in which the debugger stops."""
    debugger.set_trace(sys._getframe())
    del job, step
