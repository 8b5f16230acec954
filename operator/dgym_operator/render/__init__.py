"""Renders the manifests of sandbox pods from Jinja templates. Administrators may add templates."""

from dgym_operator.render._context import PodContext, TemplateError, sandbox_resources, token_digests
from dgym_operator.render._renderer import Renderer, check_templates, render_command

__all__ = [
    "PodContext",
    "Renderer",
    "TemplateError",
    "check_templates",
    "render_command",
    "sandbox_resources",
    "token_digests",
]
