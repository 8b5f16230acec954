"""Models: their configuration, their clients, and the protocol by which agents call them."""

from dgym.llm.catalog import ModelCatalog, load_models
from dgym.llm.config import ModelSettings
from dgym.llm.protocol import Message, Model, ModelCall, Reply, Role, ToolDefinition, Usage
from dgym.llm.secrets import Secret

__all__ = [
    "Message",
    "Model",
    "ModelCall",
    "ModelCatalog",
    "ModelSettings",
    "Reply",
    "Role",
    "Secret",
    "ToolDefinition",
    "Usage",
    "load_models",
]
