"""Slots and agents: admission of episodes, delivery of assignments, the polling of agents."""

from dgym_operator.dispatch.delivery import Deliveries
from dgym_operator.dispatch.dispatcher import Dispatcher, candidate_of, pending_pod
from dgym_operator.dispatch.polling import AgentPoller

__all__ = ["AgentPoller", "Deliveries", "Dispatcher", "candidate_of", "pending_pod"]
