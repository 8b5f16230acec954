"""Models: their configuration, their clients, and the protocol by which agents call them.

The protocol is imported at once; the reading of configurations and the clients when first used.
"""

from typing import TYPE_CHECKING, Any

from dgym.llm.protocol import Message, Model, ModelCall, Reply, Role, ToolDefinition, Usage

if TYPE_CHECKING:
    from dgym.llm.calls import describe_tools
    from dgym.llm.catalog import Check, ModelCatalog, check_model, load_models
    from dgym.llm.config import (
        FILE_NAME,
        PATH_VARIABLE,
        ModelSettings,
        Secret,
        default_path,
        user_directory,
        write_template,
    )
    from dgym.llm.faults import Fault
    from dgym.llm.tokens import TokenCounter

_LAZY = {
    "describe_tools": "calls",
    **dict.fromkeys(("Check", "ModelCatalog", "check_model", "load_models"), "catalog"),
    **dict.fromkeys(("FILE_NAME", "PATH_VARIABLE", "ModelSettings", "Secret"), "config"),
    **dict.fromkeys(("default_path", "user_directory", "write_template"), "config"),
    "Fault": "faults",
    "TokenCounter": "tokens",
}

__all__ = [
    "FILE_NAME",
    "PATH_VARIABLE",
    "Check",
    "Fault",
    "Message",
    "Model",
    "ModelCall",
    "ModelCatalog",
    "ModelSettings",
    "Reply",
    "Role",
    "Secret",
    "TokenCounter",
    "ToolDefinition",
    "Usage",
    "check_model",
    "default_path",
    "describe_tools",
    "load_models",
    "user_directory",
    "write_template",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"dgym.llm.{_LAZY[name]}"), name)
