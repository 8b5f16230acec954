"""Models: their configuration, their clients, and what an agent may ask of them."""

from dgym.llm.protocol import Message, Model, ModelCall, Reply, Role, ToolDefinition, Usage

__all__ = ["Message", "Model", "ModelCall", "Reply", "Role", "ToolDefinition", "Usage"]
