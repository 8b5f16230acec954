"""Tests of the counts of requests, grants and pods. The incremental counts must equal a new count."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dgym_operator.controllers import EPOCH
from dgym_operator.controllers.episode import Cause
from dgym_operator.dispatch._admission import Candidate
from dgym_operator.dispatch._demand import Demand, PendingPod
from dgym_operator.dispatch._holds import Stuck

KEYS = st.sampled_from([(namespace, name) for namespace in ("a", "b") for name in ("1", "2", "3")])
IMAGES = st.sampled_from(["", "python", "debian"])
MODELS = st.sampled_from(["", "good", "bad"])
CANDIDATES = st.builds(
    Candidate, priority=st.just(0), created=st.just(EPOCH), needs_slot=st.booleans(), image=IMAGES, model=MODELS
)
PODS = st.builds(
    PendingPod,
    name=st.just("pod"),
    needs_slot=st.booleans(),
    stuck=st.none() | st.just(Cause(reason="Unschedulable", message="", since=EPOCH)),
    displaced=st.booleans(),
    image=IMAGES,
    has_image=st.booleans(),
    model=MODELS,
)


class Machine(RuleBasedStateMachine):
    """Requests, grants and pods in any order."""

    def __init__(self):
        super().__init__()
        self.demand = Demand()
        self.pods = {}
        self.out = set()

    @rule(out=st.sets(MODELS.filter(bool)))
    def observe_out(self, out):
        self.out = out
        self.demand.observe_out(frozenset(("", model) for model in out))

    def is_out(self, key):
        each = self.pods.get(key) or self.demand.agent_pod_requests.get(key)
        return each is not None and each.model in self.out

    @rule(key=KEYS, candidate=st.none() | CANDIDATES)
    def request_pod(self, key, candidate):
        self.demand.request_pod(key, candidate)

    @rule(key=KEYS, candidate=st.none() | CANDIDATES)
    def request_agent_pod(self, key, candidate):
        self.demand.request_agent_pod(key, candidate)

    @precondition(lambda self: len(self.demand.pod_requests))
    @rule(data=st.data())
    def grant_pod(self, data):
        self.demand.grant_pod(data.draw(st.sampled_from(sorted(self.demand.pod_requests))))

    @precondition(lambda self: len(self.demand.agent_pod_requests))
    @rule(data=st.data())
    def grant_agent_pod(self, data):
        self.demand.grant_agent_pod(data.draw(st.sampled_from(sorted(self.demand.agent_pod_requests))), "agent")

    @rule(key=KEYS)
    def withdraw(self, key):
        had = key in self.demand.pods_granted, key in self.demand.agent_pods_granted
        assert (self.demand.withdraw_pod(key) is not None, self.demand.withdraw_agent_pod(key)) == had

    @rule(key=KEYS, pod=st.none() | PODS)
    def observe_pod(self, key, pod):
        assert self.demand.observe_pod(key, pod) == self.pods.pop(key, None)
        if pod is not None:
            self.pods[key] = pod

    @invariant()
    def agrees(self):
        demand, granted = self.demand, self.demand.agent_pods_granted
        starting = {key for key, pod in self.pods.items() if pod.stuck is None and not pod.displaced}
        starting |= demand.pods_granted.keys()
        reserved = {
            key
            for key, pod in self.pods.items()
            if pod.needs_slot and pod.stuck is None
            if key in granted or not (pod.displaced or self.is_out(key))
        }
        reserved |= {key for key, candidate in demand.pods_granted.items() if candidate.needs_slot}
        requests = demand.agent_pod_requests
        reserved |= {key for key in requests if requests[key].needs_slot and not self.is_out(key)}
        images = {candidate.image for candidate in demand.pods_granted.values()}
        images |= {pod.image for pod in self.pods.values() if pod.stuck is None and not pod.has_image}
        assert demand.reserved.total() == len(reserved)
        assert demand.reserving == Counter(key[0] for key in reserved - granted.keys())
        assert demand.starting == Counter(key[0] for key in starting - granted.keys())
        assert set(demand.images) == images
        assert demand.stuck == {
            key: Stuck(pod.name, pod.stuck) for key, pod in self.pods.items() if pod.stuck is not None
        }
        assert demand.backing_off.total() == sum(
            pod.needs_slot
            and key not in granted
            and ((self.is_out(key) and pod.stuck is None) or (pod.displaced and key not in requests))
            for key, pod in self.pods.items()
        )


TestDemand = Machine.TestCase
TestDemand.settings = settings(stateful_step_count=25)
