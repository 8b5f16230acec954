"""Agents: what decides the next call. The ones here need no model."""

from dgym.agents.base import Action, Agent, AgentContext, BaseAgent, Env
from dgym.agents.registry import agent_names, load_agent

__all__ = ["Action", "Agent", "AgentContext", "BaseAgent", "Env", "agent_names", "load_agent"]
