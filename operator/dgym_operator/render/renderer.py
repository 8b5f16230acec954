"""Templates to pod manifests: rendered, read, and checked for what the controller relies on.

The API server validates every pod against its whole schema (``fieldValidation=Strict``) and checks more than any copy
of the schema here could. The tests do so for the shipped templates, ``dgym-operator render … | kubectl create
--dry-run=server`` for others. Only what the API server cannot check is checked here.
"""

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import yaml

from dgym.documents import read_yaml
from dgym.errors import FieldPath, nearest, render_path
from dgym_operator.render.context import IMAGE, PodContext, TemplateError, blanks, own_labels, template_variables
from dgym_operator.render.environment import SUFFIX, TemplateEnvironment, TemplateLoader
from dgym_operator.render.forms import Forms
from dgym_operator.render.shapes import ShapeCache

_LARGEST_TEXT = 1024**2


class Renderer:
    """Renders pods from named templates. Files that change are read again.

    Args:
        directory: An administrator's templates, ``NAME.yaml.j2``; they replace shipped ones of the same name.
        clock: Seconds for the time limit of a render: of the thread's own CPU, since the machine may be busy.
        forms: Whether pods that differ in texts alone are made from one form; otherwise each is rendered.
    """

    def __init__(
        self,
        *,
        directory: Path | None = None,
        clock: Callable[[], float] = time.thread_time,
        forms: bool = True,
    ) -> None:
        self._loader = TemplateLoader(directory)
        self._environment = TemplateEnvironment(self._loader, clock=clock)
        self._shapes = ShapeCache()
        self._forms = Forms() if forms else None

    def render(self, template: str, context: PodContext) -> dict[str, Any]:
        """The manifest of one attempt's pod.

        Raises:
            TemplateError: The template is unknown or wrong, or gives no pod that an episode can run in.
            InvalidOverride: The episode or the task requests a setting that no pod may have.
        """
        variables = template_variables(context)

        pod = self._filled(template, variables)
        if pod is None:
            pod = self._rendered(template, variables)
        try:
            return _complete(pod, context)
        except ValueError as error:
            raise TemplateError(f"pod template {template!r}: {error}") from None

    def _filled(self, template: str, variables: dict[str, Any]) -> dict[str, Any] | None:
        """The pod by a form; None: it is to be rendered."""
        if self._forms is None:
            return None

        def render(given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
            text = self._text(template, given)
            return text, _document(text, template)

        state, paths = (template, self._loader.signature()), blanks(variables)
        found = self._forms.fill(state, variables, paths, render)
        if found is not None:
            return found
        # A template may look at the image, and there are fewer images than pods.
        return self._forms.fill(state, variables, [path for path in paths if path != IMAGE], render)

    def _rendered(self, template: str, variables: dict[str, Any]) -> dict[str, Any]:
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
        try:
            return self._shapes.read(text, lambda text: _document(text, template))
        except ValueError as error:
            raise TemplateError(f"pod template {template!r}: {error}") from None

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


CONTAINERS = ("sandbox", "verifier", "sidecar")
_Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 100
_MOST_VALUES = 20_000
_DEFAULTS = {"restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False}


def _complete(pod: dict[str, Any], context: PodContext) -> dict[str, Any]:
    """The pod with all that an episode needs.

    Raises:
        ValueError: No episode can run in it.
    """
    if (pod.get("apiVersion"), pod.get("kind")) != ("v1", "Pod"):
        raise ValueError("is no Pod; write apiVersion: v1 and kind: Pod")
    spec, metadata = _mapping(pod, "spec"), _mapping(pod, "metadata")
    _check_spec(spec)
    metadata.update(name=context.name, namespace=context.namespace)
    _mapping(metadata, "labels").update(own_labels(context))
    for name, value in _DEFAULTS.items():
        spec.setdefault(name, value)
    spec.setdefault("activeDeadlineSeconds", context.active_deadline_seconds)
    if context.settings.runtime_class_name and not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = context.settings.runtime_class_name
    if context.settings.user_namespaces:
        spec["hostUsers"] = False
    return pod


def _document(text: str, template: str) -> dict[str, Any]:
    """The text's one mapping, of values that JSON has."""
    _check_structure(text, template)
    documents = list(read_yaml(text))
    for document in documents:
        for problem in document.problems:
            raise TemplateError(f"pod template {template!r} gives {_located(text, problem)}")
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        raise TemplateError(f"pod template {template!r} gives {len(documents)} documents or no mapping, not one pod")
    value: dict[str, Any] = documents[0].value
    _check_values(value, (), [_MOST_VALUES])
    return value


def _check_structure(text: str, template: str) -> None:
    """Refuse what would harm a YAML constructor: depth overflows the stack, ten nested aliases are a million values."""
    depth = 0
    try:
        for event in yaml.parse(text, _Parser):
            if isinstance(event, yaml.AliasEvent):
                raise _at_line(template, event, "aliases multiply what they name; write it out")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _DEEPEST:
                raise _at_line(template, event, f"nested more than {_DEEPEST} deep")
    except yaml.YAMLError:
        return  # The reader reports it.


def _at_line(template: str, event: yaml.Event, what: str) -> TemplateError:
    line = event.start_mark.line + 1 if event.start_mark else 1
    return TemplateError(f"pod template {template!r}: rendered line {line}: {what}")


def _located(text: str, problem: Any) -> str:
    what = f"{render_path(problem.path)}: {problem.message}" if problem.path else str(problem.message)
    lines = text.split("\n")
    if problem.line is None or problem.line > len(lines):
        return what
    return f"{what}\n  rendered line {problem.line}: {lines[problem.line - 1].strip()[:200]}"


def _check_values(value: Any, path: FieldPath, left: list[int]) -> None:
    """Check that the value is JSON, and not larger than a pod needs."""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"more than {_MOST_VALUES:,} values")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{render_path(path)}: the key {key!r} is not text; quote it")
            _check_values(item, (*path, key), left)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_values(item, (*path, index), left)
    elif not isinstance(value, str | bool | int | float | None) or value != value:
        raise ValueError(f"{render_path(path)}: {value!r} is not a value of JSON; quote it")


def _mapping(holder: dict[str, Any], name: str) -> dict[str, Any]:
    value = holder.setdefault(name, {})
    if value is None:
        value = holder[name] = {}
    if not isinstance(value, dict):
        raise ValueError(f"{name}: is {value!r}, not a mapping")
    return value


def _check_spec(spec: dict[str, Any]) -> None:
    containers = spec.get("containers")
    names = [each.get("name") for each in containers if isinstance(each, dict)] if isinstance(containers, list) else []
    missing = [name for name in CONTAINERS if name not in names]
    if missing:
        raise ValueError(
            f"spec.containers: has no {' and no '.join(missing)}; every episode needs {', '.join(CONTAINERS)}"
        )
    if spec.get("restartPolicy", "Never") != "Never":
        raise ValueError(f"spec.restartPolicy: is {spec['restartPolicy']!r}; an attempt has one pod that ends: Never")
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            raise ValueError(f"spec.{name}: the sandbox would share the node's; remove it")
    if spec.get("shareProcessNamespace"):
        raise ValueError("spec.shareProcessNamespace: the sandbox could end the verifier; remove it")
