"""Models: their configuration, their clients, and the protocol by which agents call them.

The protocol is imported at once; the reading of configurations and the clients when first used.
"""

from typing import TYPE_CHECKING

from dgym.lazy import lazy_names
from dgym.llm.protocol import Message, Model, ModelCall, Reply, Role, ToolDefinition, Usage, Waiting

if TYPE_CHECKING:
    from dgym.llm.calls import describe_tool, describe_tools, write_arguments, write_result
    from dgym.llm.catalog import Check, ModelCatalog, check_model, load_models, withholding_model
    from dgym.llm.completions import render_call
    from dgym.llm.config import (
        FILE_NAME,
        PATH_VARIABLE,
        ModelSettings,
        Secret,
        default_path,
        mask,
        user_directory,
        write_template,
    )
    from dgym.llm.faults import Fault
    from dgym.llm.record import describe_model
    from dgym.llm.tokens import TokenCounter

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
    "Waiting",
    "check_model",
    "default_path",
    "describe_model",
    "describe_tool",
    "describe_tools",
    "load_models",
    "mask",
    "render_call",
    "user_directory",
    "withholding_model",
    "write_arguments",
    "write_result",
    "write_template",
]

__getattr__ = lazy_names(
    __name__,
    {
        "dgym.llm.calls": ("describe_tool", "describe_tools", "write_arguments", "write_result"),
        "dgym.llm.catalog": ("Check", "ModelCatalog", "check_model", "load_models", "withholding_model"),
        "dgym.llm.completions": ("render_call",),
        "dgym.llm.config": (
            *("FILE_NAME", "PATH_VARIABLE", "ModelSettings", "Secret"),
            *("default_path", "mask", "user_directory", "write_template"),
        ),
        "dgym.llm.faults": ("Fault",),
        "dgym.llm.record": ("describe_model",),
        "dgym.llm.tokens": ("TokenCounter",),
    },
)
