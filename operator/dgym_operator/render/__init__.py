"""From an episode to the manifest of its pod, by Jinja templates that administrators may add to."""

from dgym_operator.render.context import (
    PodContext,
    TemplateError,
    label_value,
    sandbox_resources,
    token_digests,
)
from dgym_operator.render.preview import check_templates, render_command
from dgym_operator.render.renderer import Renderer

__all__ = [
    "PodContext",
    "Renderer",
    "TemplateError",
    "check_templates",
    "label_value",
    "render_command",
    "sandbox_resources",
    "token_digests",
]
