"""Models: their configuration, their clients, and the protocol by which agents call them.

The protocol is imported with the package. The other modules are imported when one of their names is first used.
"""

from typing import TYPE_CHECKING

from dgym.lazy import lazy_names
from dgym.llm._protocol import Message, Model, ModelCall, Reply, TokenUsage, ToolDefinition, Waiting

if TYPE_CHECKING:
    from dgym.llm._calls import describe_tool, describe_tools, write_arguments, write_result
    from dgym.llm._completions import render_call
    from dgym.llm._config import (
        FILE_NAME,
        PATH_VARIABLE,
        ModelSettings,
        Secret,
        default_path,
        mask,
        user_directory,
        write_template,
    )
    from dgym.llm._faults import Fault
    from dgym.llm._limits import TokenCounter
    from dgym.llm._remote import Check, ModelCatalog, capturing_model, check_model, describe_model, load_models

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
    "Secret",
    "TokenCounter",
    "TokenUsage",
    "ToolDefinition",
    "Waiting",
    "capturing_model",
    "check_model",
    "default_path",
    "describe_model",
    "describe_tool",
    "describe_tools",
    "load_models",
    "mask",
    "render_call",
    "user_directory",
    "write_arguments",
    "write_result",
    "write_template",
]

__getattr__ = lazy_names(
    __name__,
    {
        "dgym.llm._calls": ("describe_tool", "describe_tools", "write_arguments", "write_result"),
        "dgym.llm._remote": (
            "Check",
            "ModelCatalog",
            "check_model",
            "describe_model",
            "load_models",
            "capturing_model",
        ),
        "dgym.llm._completions": ("render_call",),
        "dgym.llm._config": (
            "FILE_NAME",
            "PATH_VARIABLE",
            "ModelSettings",
            "Secret",
            "default_path",
            "mask",
            "user_directory",
            "write_template",
        ),
        "dgym.llm._faults": ("Fault",),
        "dgym.llm._limits": ("TokenCounter",),
    },
)
