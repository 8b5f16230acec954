"""Agents: what decides the next call."""

from dgym.agents.base import Action, Agent, AgentContext, BaseAgent, Env, StopEpisode, Tools
from dgym.agents.registry import agent_names, load_agent

__all__ = ["Action", "Agent", "AgentContext", "BaseAgent", "Env", "StopEpisode", "Tools", "agent_names", "load_agent"]
