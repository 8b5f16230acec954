"""From an episode to the manifest of its pod, by Jinja templates that administrators may add to."""

from dgym_operator.render.context import PodContext, PodSettings, TemplateError, label_value, token_digests
from dgym_operator.render.preview import check_templates, render_command
from dgym_operator.render.renderer import Renderer
from dgym_operator.render.resources import DEFAULT, sandbox_resources

__all__ = [
    "DEFAULT",
    "PodContext",
    "PodSettings",
    "Renderer",
    "TemplateError",
    "check_templates",
    "label_value",
    "render_command",
    "sandbox_resources",
    "token_digests",
]
