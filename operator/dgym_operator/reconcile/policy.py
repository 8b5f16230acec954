"""Constants of decisions: how long things may take, and how often they are tried."""

import msgspec


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all episodes; tests use shorter ones.

    Attributes:
        backoff_seconds: Before the second attempt; doubles with every failure of the sandbox.
        backoff_limit_seconds: What the back-off grows to.
        shown_after_seconds: How long something must last before it is worth a write of progress.
        steps_seconds: Between two records of how many steps an attempt has taken.
        repeat_seconds: Between two tellings of a sidecar that must hear something.
        report_seconds: How long a fresh report of an agent may take to arrive.
        ending_seconds: How long a pod may take from its agent's "finished" to its own end.
        terminating_seconds: How long a pod may be there past the end of its grace; then its node is lost.
        preparation_seconds: From the assignment to the first reset, and around the tests at the end.
        backstop_seconds: Above all clocks of the sidecar, before the operator ends what should have ended.
        slow_start_seconds: After so long from its scheduling a pod that is not ready keeps no slot any more.
        create_retry_seconds: What the back-off of creating one pod grows to; room in a quota comes at any time.
        agent_losses: How many lost agents one pod outlives.
        agent_failures: How often a model may fail in one pod and be tried again.
        settle_seconds: How old the newest task must be before a selector's choice is frozen.
        creates_per_round: Children a set makes in one round.
    """

    backoff_seconds: float = 10.0
    backoff_limit_seconds: float = 360.0
    shown_after_seconds: float = 5.0
    steps_seconds: float = 30.0
    repeat_seconds: float = 5.0
    report_seconds: float = 10.0
    ending_seconds: float = 30.0
    terminating_seconds: float = 30.0
    preparation_seconds: float = 600.0
    backstop_seconds: float = 60.0
    slow_start_seconds: float = 120.0
    create_retry_seconds: float = 60.0
    agent_losses: int = 10
    agent_failures: int = 3
    settle_seconds: float = 5.0
    creates_per_round: int = 50


def backoff(base: float, limit: float, failures: int) -> float:
    """Seconds to wait after that many failures: doubling, and bounded."""
    return min(limit, base * 2.0 ** min(max(failures, 1) - 1, 32))
