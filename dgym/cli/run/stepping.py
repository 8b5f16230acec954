"""``dgym run --debug``: Python's debugger after each reply of a model, or after each step of an agent without one."""

import bdb
import pdb  # noqa: T100 - this is what the option is for
import sys

from dgym.agents import Exchange, load_agent
from dgym.cli.output import echo
from dgym.episodes import Hooks, Job, describe_exchange
from dgym.wire import Step


def stopping_hooks(job: Job) -> Hooks:
    """Hooks that stop after each reply of a model or, for an agent without one, after each step."""
    if load_agent(job.agent.name).uses_model:
        return Hooks(on_exchange=lambda exchange, steps: stop_after_reply(job, exchange, steps))
    return Hooks(on_step=lambda step: stop_after_step(job, step))


def stop_after_reply(job: Job, exchange: Exchange, steps: list[Step]) -> None:
    """Stop before the reply's call is made, with ``job``, ``exchange`` and the last ``step`` at hand."""
    calls = ", ".join(
        f"{call.tool} {call.arguments if call.arguments is not None else call.raw}" for call in exchange.calls
    )
    text = f"{job.episode}: before step {len(steps)}\n{describe_exchange(exchange)}\ncalls: {calls or 'none'}"
    echo(text)
    echo("look at exchange.reasoning, exchange.calls and step.observation.text; c goes on, q quits")
    _stop(job, steps[-1], exchange)


def stop_after_step(job: Job, step: Step) -> None:
    """Stop with ``job`` and ``step`` at hand; ``c`` goes on to the next step, ``q`` interrupts the run."""
    tool = step.call.tool if step.call is not None else "reset"
    echo(f"{job.episode}: step {step.seq} ({tool}); look at step.call and step.observation.text; c goes on, q quits")
    _stop(job, step, None)


def _stop(job: Job, step: Step, exchange: Exchange | None) -> None:
    debugger = pdb.Pdb(nosigint=True, readrc=False)
    debugger.prompt = "(dgym) "
    try:
        _stand(debugger, job, step, exchange)
    except bdb.BdbQuit:
        raise KeyboardInterrupt from None
    finally:
        sys.settrace(None)


def _stand(debugger: pdb.Pdb, job: Job, step: Step, exchange: Exchange | None) -> None:
    """The frame in which the debugger stops."""
    debugger.set_trace(sys._getframe())
    del job, step, exchange
