"""Dispatch of episodes to agent pods: admission to slots, delivery of assignments, and polling of agent pods."""

from dgym_operator.dispatch._admission import Candidate
from dgym_operator.dispatch._delivery import AgentPodPoller, Deliveries
from dgym_operator.dispatch._dispatcher import Dispatcher, candidate_of, pending_pod

__all__ = ["AgentPodPoller", "Candidate", "Deliveries", "Dispatcher", "candidate_of", "pending_pod"]
