"""Templates to pods."""

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2

from dgym.problems import nearest
from dgym_operator.render.context import PodContext, TemplateError, template_variables
from dgym_operator.render.environment import SUFFIX, TemplateEnvironment, TemplateLoader
from dgym_operator.render.manifest import read_pod

_LARGEST_TEXT = 1024**2


class Renderer:
    """Renders pods from named templates. Files that change are read again.

    Args:
        directory: An administrator's templates, ``NAME.yaml.j2``; they replace shipped ones of the same name.
        clock: Seconds for the time limit of a render: of the thread's own CPU, since the machine may be busy.
    """

    def __init__(self, *, directory: Path | None = None, clock: Callable[[], float] = time.thread_time) -> None:
        self._loader = TemplateLoader(directory)
        self._environment = TemplateEnvironment(self._loader, clock=clock)

    def render(self, template: str, context: PodContext) -> dict[str, Any]:
        """The manifest of one attempt's pod.

        Raises:
            TemplateError: The template is unknown or wrong, or gives no pod that an episode can run in.
            InvalidOverride: The episode or the task asks for what no pod may have.
        """
        variables = template_variables(context)
        try:
            text = self._text(template, variables)
        except jinja2.TemplateNotFound as error:
            raise TemplateError(self._not_found(error, template)) from None
        except jinja2.TemplateSyntaxError as error:
            where = f"{error.filename or error.name}, line {error.lineno}"
            raise TemplateError(f"pod template {template!r}: {where}: {error.message}") from None
        except TemplateError:
            raise
        except Exception as error:
            # Whatever an expression can raise: the template is wrong, not the controller.
            raise TemplateError(f"pod template {template!r}: {_place(error)}{_what(error)}") from error
        return read_pod(text, context, template=template)

    @property
    def templates(self) -> list[str]:
        """The names of all templates."""
        return self._loader.list_templates()

    def _text(self, template: str, variables: dict[str, Any]) -> str:
        self._environment.start_clock()
        pieces, size = [], 0
        for piece in self._environment.get_template(template).generate(variables):
            self._environment.check_clock()
            pieces.append(piece)
            size += len(piece)
            if size > _LARGEST_TEXT:
                raise TemplateError(f"pod template {template!r} gives more than {_LARGEST_TEXT:,} characters")
        return "".join(pieces)

    def _not_found(self, error: jinja2.TemplateNotFound, template: str) -> str:
        name = str(error.name or template)
        if error.message and error.message != name:
            return f"pod template {name!r}: {error.message}"
        known = self.templates
        guess = nearest(name, known)
        remedy = f"did you mean {guess!r}?" if guess else f"known ones are {', '.join(known)}"
        named = "" if name == template else f" (extended by {template!r})"
        return f"there is no pod template {name!r}{named}; {remedy}"


def _place(error: Exception) -> str:
    """The innermost line of a template on the way to the error; Jinja lets tracebacks show templates' own lines."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.endswith(SUFFIX):
            return f"{frame.filename}, line {frame.lineno}: "
    return ""


def _what(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateError):
        return str(error)
    return f"{type(error).__name__}: {error}"
