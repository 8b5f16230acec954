"""The dashboards of the chart: progress, failures, latency, models and the operator."""

from collections.abc import Iterator

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dgym.wire import EndReason
from hack.monitoring.panels import HERE, Board, Panel, Query, build, leader, quantile, quantiles, rate, resolve_rate

_COUNTED = "|".join(reason.value for reason in EndReason if reason.is_counted)
_STUCK = "Unschedulable|ImagePullFailed|QuotaExceeded|TaskNotFound|PodNotCreated|SchedulingGated|ResultStoreUnavailable"


_REMAINING = f"sum({leader('dgym_set_episodes', state='pending|active|suspended')})"
_FINISH_RATE = rate("dgym_episodes_finished_total", window="30m")
_ENDS = "dgym_episodes_finished_total"

PROGRESS = Board(
    "progress",
    "dgym / Progress",
    "Is it going: episodes that wait, run and are done, how fast, until when, and with what result.",
    (
        Panel(
            "Active",
            "Episodes in agent pods now.",
            "short",
            (Query(f"sum({leader('dgym_episodes', state='active')})"),),
            "number",
        ),
        Panel("Remaining", "Episodes of sets that are not finished.", "short", (Query(_REMAINING),), "number"),
        Panel(
            "Finished an hour",
            "Rate of the last half hour.",
            "short",
            (Query(f"3600 * {_FINISH_RATE}"),),
            "number",
        ),
        Panel(
            "Time left",
            "Remaining episodes of sets at the rate of the last half hour.",
            "s",
            (Query(f"{_REMAINING} / ({_FINISH_RATE} > 0)"),),
            "number",
        ),
        Panel(
            "Episodes by state",
            "pending: no assignment yet; active: an agent pod has it; finished: still there as an object.",
            "short",
            (Query(f"sum by (state) ({leader('dgym_episodes')})", "{{state}}"),),
            "stack",
        ),
        Panel(
            "Waiting by reason",
            "Unfinished episodes by status.reason: what they wait for, or what they do.",
            "short",
            (Query(f"sum by (reason) ({leader('dgym_episodes', state='!finished')}) > 0", "{{reason}}"),),
            "stack",
        ),
        Panel(
            "Resolve rate by set",
            "Resolved episodes among the counted episodes of each set.",
            "percentunit",
            (Query(resolve_rate("dgym_set_episodes", "set"), "{{set}}"),),
            "bars",
        ),
        Panel(
            "Resolve rate by set and arm",
            "Resolved episodes among the counted episodes, of each arm of the sets that have arms.",
            "percentunit",
            (Query(resolve_rate("dgym_set_arm_episodes", "set, arm"), "{{set}} {{arm}}"),),
            "bars",
        ),
        Panel(
            "Done by set",
            "Finished episodes among all of a set.",
            "percentunit",
            (
                Query(
                    f"sum by (set) ({leader('dgym_set_episodes', state='resolved|unresolved|failed')})"
                    f" / (sum by (set) ({leader('dgym_set_episodes')}) > 0)",
                    "{{set}}",
                ),
            ),
            "bars",
        ),
        Panel(
            "Finished by outcome",
            "Episodes that finish, a minute.",
            "short",
            (Query(f"60 * {rate('dgym_episode_duration_seconds_count', 'outcome')}", "{{outcome}}"),),
        ),
        Panel(
            "Slots",
            "Slots of the agent pods that answer.",
            "short",
            (Query(f"sum by (state) ({leader('dgym_slots')})", "{{state}}"),),
            "stack",
        ),
    ),
)

FAILURES = Board(
    "failures",
    "dgym / Failures",
    "Why episodes fail: reasons, attempts that were repeated, and what they wait for.",
    (
        Panel(
            "Ends by reason",
            "Episodes that finish per hour, failed or not.",
            "short",
            (Query(f"3600 * {rate(_ENDS, 'reason')} > 0", "{{reason}}"),),
            "stack",
        ),
        Panel(
            "Share of failures",
            "Failed episodes among all that finished.",
            "percentunit",
            (
                Query(
                    f"{rate(_ENDS, 'reason', reason='!' + _COUNTED)} / scalar({rate(_ENDS)} > 0)",
                    "{{reason}}",
                ),
            ),
        ),
        Panel(
            "Failed attempts by reason",
            "First causes: failed attempts per hour. Most are repeated.",
            "short",
            (Query(f"3600 * {rate('dgym_attempts_failed_total', 'reason')} > 0", "{{reason}}"),),
            "stack",
        ),
        Panel(
            "Stuck episodes",
            "Unfinished episodes with a reason that needs an administrator.",
            "short",
            (
                Query(
                    f"sum by (reason) ({leader('dgym_episodes', state='!finished', reason=_STUCK)})",
                    "{{reason}}",
                ),
            ),
            "stack",
        ),
        Panel(
            "Agent pods",
            "silent: do not answer; refusing: refuse the operator's token.",
            "short",
            (Query(f"sum by (state) ({leader('dgym_agents')})", "{{state}}"),),
            "stack",
        ),
        Panel(
            "Assignments",
            "Assignments sent to agent pods, a minute; unmet: without task or source.",
            "short",
            (Query(f"60 * {rate('dgym_assignments_total', 'result')}", "{{result}}"),),
        ),
        Panel(
            "Resumed midway, and failures of the results store",
            "Episodes that another agent pod had begun, and failed calls of the store, a minute.",
            "short",
            (
                Query(f"60 * {rate('dgym_agent_episodes_resumed_total')}", "resumed"),
                Query(f"60 * {rate('dgym_agent_store_failures_total')}", "store failures"),
            ),
        ),
    ),
)

LATENCY = Board(
    "latency",
    "dgym / Latency by stage",
    "Where the time of episodes goes, from their creation to the release of the pod.",
    (
        Panel(
            "Stages, median",
            "Time of each stage of the last attempt; a stage begins at the end of the stage before.",
            "s",
            (Query(quantile(0.5, "dgym_episode_stage_seconds", "stage"), "{{stage}}"),),
        ),
        Panel(
            "Stages, p95",
            "As before; one of twenty episodes takes longer.",
            "s",
            (Query(quantile(0.95, "dgym_episode_stage_seconds", "stage"), "{{stage}}"),),
        ),
        Panel(
            "Duration of episodes",
            "From the creation of an Episode to its end.",
            "s",
            quantiles("dgym_episode_duration_seconds", "outcome"),
        ),
        Panel(
            "Until the sandbox is ready",
            "From the creation of a pod.",
            "s",
            quantiles("dgym_sandbox_ready_seconds"),
        ),
        Panel(
            "Stages in agent pods",
            "prepare: source and sandbox; play: the agent's steps; close: scoring; store: results.",
            "s",
            (Query(quantile(0.95, "dgym_agent_stage_seconds", "stage"), "p95 {{stage}}"),),
        ),
        Panel(
            "Calls of tools",
            "In the sandbox; without the way there.",
            "s",
            (Query(quantile(0.95, "dgym_agent_tool_call_seconds", "tool"), "p95 {{tool}}"),),
        ),
    ),
)

MODEL = Board(
    "model",
    "dgym / Model",
    "Requests to models, their tokens, cost and failures; what agents do with the replies.",
    (
        Panel(
            "Replies",
            "Replies of models, a minute.",
            "short",
            (Query(f"60 * {rate('dgym_agent_model_replies_total', 'model')}", "{{model}}"),),
        ),
        Panel(
            "Failed requests",
            "Requests that failed, a minute, those that were repeated too.",
            "short",
            (Query(f"60 * {rate('dgym_agent_model_failures_total', 'model, fault')}", "{{model}}: {{fault}}"),),
            "stack",
        ),
        Panel(
            "Outages",
            "Agent pods that begin no episode with the model but probes.",
            "short",
            (Query(f"sum by (model) (dgym_agent_model_outage{{{HERE}}})", "{{model}}"),),
        ),
        Panel(
            "Time of a request",
            "Duration of requests that a model replied to.",
            "s",
            quantiles("dgym_agent_model_request_seconds", "model"),
        ),
        Panel(
            "Waits",
            "Seconds that replies waited for rate limits, places and retries, in each second.",
            "short",
            (Query(rate("dgym_agent_model_wait_seconds_total", "model"), "{{model}}"),),
        ),
        Panel(
            "Tokens",
            "Tokens a second.",
            "short",
            (Query(rate("dgym_agent_model_tokens_total", "model, direction"), "{{model}} {{direction}}"),),
        ),
        Panel(
            "Cost",
            "Price of the tokens, an hour, in the currency of llm.yaml.",
            "short",
            (Query(f"3600 * {rate('dgym_agent_model_cost_total', 'model')}", "{{model}}"),),
            "stack",
        ),
        Panel(
            "Retries",
            "Repeated requests before a reply, a minute.",
            "short",
            (Query(f"60 * {rate('dgym_agent_model_retries_total', 'model')}", "{{model}}"),),
        ),
        Panel(
            "Calls of tools",
            "Calls a minute; error: the tool could not execute the call.",
            "short",
            (Query(f"60 * {rate('dgym_agent_tool_calls_total', 'tool, result')} > 0", "{{tool}} {{result}}"),),
            "stack",
        ),
        Panel(
            "Steps",
            "Steps recorded, a minute.",
            "short",
            (Query(f"60 * {rate('dgym_agent_steps_total')}", "steps"),),
        ),
    ),
)

OPERATOR = Board(
    "operator",
    "dgym / Operator",
    "Whether the operator keeps up: work queue, reconciles, the API server, watches, the process.",
    (
        Panel(
            "Leader", "Replicas that lead: 1.", "short", (Query(f"sum(dgym_operator_is_leader{{{HERE}}})"),), "number"
        ),
        Panel(
            "Episodes in the cache",
            "Objects that the leader watches.",
            "short",
            (Query(f"sum({leader('dgym_operator_cache_objects', resource='episodes')})"),),
            "number",
        ),
        Panel(
            "Work queue",
            "Objects that wait, that a worker has, and that follow after a delay.",
            "short",
            (
                Query(f"sum({leader('dgym_operator_queue_depth')})", "waiting"),
                Query(f"sum({leader('dgym_operator_queue_active')})", "with a worker"),
                Query(f"sum({leader('dgym_operator_queue_delayed')})", "delayed"),
            ),
        ),
        Panel(
            "Oldest in the queue",
            "Time that it has waited for a worker.",
            "s",
            (Query(f"max({leader('dgym_operator_queue_oldest_seconds')})", "oldest"),),
        ),
        Panel(
            "Reconciles",
            "A second, by result.",
            "ops",
            (Query(f"{rate('dgym_operator_reconcile_total', 'result')} > 0", "{{result}}"),),
            "stack",
        ),
        Panel(
            "Time of a reconcile",
            "With its writes.",
            "s",
            quantiles("dgym_operator_reconcile_seconds", "kind"),
        ),
        Panel(
            "Requests to the API server",
            "A second, by verb and code; 0: no answer.",
            "reqps",
            (Query(rate("dgym_operator_api_requests_total", "verb, code"), "{{verb}} {{code}}"),),
            "stack",
        ),
        Panel(
            "Time of a request to the API server",
            "Watches apart.",
            "s",
            (Query(quantile(0.95, "dgym_operator_api_request_seconds", "verb"), "p95 {{verb}}"),),
        ),
        Panel(
            "Waits of writes",
            "Seconds that writes wait for operator.api.qps, in each second; and answers 429 a second.",
            "short",
            (
                Query(rate("dgym_operator_api_throttle_seconds_total"), "own limit"),
                Query(f"{rate('dgym_operator_api_requests_total', code='429')} or vector(0)", "429"),
            ),
        ),
        Panel(
            "Staleness of watches",
            "Time since a watch last received data; bookmarks arrive about once a minute.",
            "s",
            (
                Query(
                    f"max by (resource) (dgym_operator_watch_staleness_seconds{{{HERE}}})",
                    "{{resource}}",
                ),
            ),
        ),
        Panel(
            "Events of watches",
            "Received a second.",
            "short",
            (Query(rate("dgym_operator_watch_events_total", "resource"), "{{resource}}"),),
            "stack",
        ),
        Panel(
            "Waiting for a grant",
            "Episodes that wait for a slot, to create a pod or to get an agent pod.",
            "short",
            (Query(f"sum by (resource) ({leader('dgym_admission_requests')})", "{{resource}}"),),
        ),
        Panel(
            "Delay of the event loop, p95",
            "Sampled once a second; above 0.1 s the process lacks CPU.",
            "s",
            (
                Query(quantile(0.95, "dgym_operator_loop_lag_seconds"), "operator"),
                Query(quantile(0.95, "dgym_agent_loop_lag_seconds"), "agent pods"),
            ),
        ),
        Panel(
            "Memory",
            "Resident memory of operator and agent pods.",
            "bytes",
            (Query(f"sum by (instance) (process_resident_memory_bytes{{{HERE}}})", "{{instance}}"),),
        ),
        Panel(
            "CPU",
            "Cores used by operator and agent pods.",
            "short",
            (Query(rate("process_cpu_seconds_total", "instance"), "{{instance}}"),),
        ),
    ),
)

BOARDS = (PROGRESS, FAILURES, LATENCY, MODEL, OPERATOR)


def dashboards() -> Iterator[tuple[str, str]]:
    """Yield the name and the JSON of every dashboard."""
    for board in BOARDS:
        yield board.name, JSONEncoder(sort_keys=True, indent=1).encode(build(board)) + "\n"
