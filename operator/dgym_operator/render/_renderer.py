"""Renders pod manifests from templates, and checks the properties that the controller depends on.

``dgym-operator render`` writes the pods of episodes as YAML, without a cluster. Templates are also checked at the
start.
"""

import re
import secrets
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import yaml

from dgym.api import (
    DebugTask,
    DebugTaskSpec,
    Episode,
    EpisodeSet,
    EpisodeSpec,
    InlineFile,
    ObjectMeta,
    PlannedEpisode,
    SourceSpec,
    expand,
    find_task,
    load,
)
from dgym.documents import read_yaml
from dgym.errors import FieldPath, ManifestError, nearest, render_path
from dgym_operator.render._context import (
    IMAGE,
    PodContext,
    TemplateError,
    blanks,
    own_labels,
    template_variables,
    token_digests,
)
from dgym_operator.render._environment import SUFFIX, Blank, TemplateEnvironment, TemplateLoader, mark_of
from dgym_operator.settings import Settings

_LARGEST_TEXT = 1024**2
_FORMS = 256
# Printable ASCII characters that are the same in JSON and YAML and that ``literal`` does not change.
_FILLABLE = re.compile(r"[ !#%-\[\]-~]{0,1000}")
CONTAINERS = ("sandbox", "verifier", "sidecar")
_MOST_VALUES = 20_000
_DEFAULTS = {"restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False}
_KEY = b"not the cluster's"
_UID = "00000000-0000-0000-0000-000000000000"
_OVERHEAD_SECONDS = 3600


class Renderer:
    """Renders pods from named templates. Changed files are read again.

    Most pods of a template differ only in a few texts, such as names and digests. These texts are left blank in a
    *form*, which is rendered and parsed once and then filled in for each pod. A template may only write a blank. All
    other uses raise ``BlankUsed``, and the pods of such a template are rendered one by one. So a filled form is always
    equal to the rendered pod.

    Args:
        directory: Directory with an administrator's templates, ``NAME.yaml.j2``. They replace shipped templates with
            the same name.
        clock: Clock in seconds for the time limit of a render. The default is the CPU time of the thread, because the
            machine may be busy.
    """

    def __init__(self, *, directory: Path | None = None, clock: Callable[[], float] = time.thread_time) -> None:
        self._loader = TemplateLoader(directory)
        self._environment = TemplateEnvironment(self._loader, clock=clock)
        self._forms: OrderedDict[Hashable, dict[str, Any] | None] = OrderedDict()
        # Random, so that templates and values do not contain it.
        self._mark = f"dgym-blank-{secrets.token_hex(8)}-"
        self._whole = re.compile(rf"{self._mark}\d+-")

    def render(self, template: str, context: PodContext) -> dict[str, Any]:
        """Return the manifest of one attempt's pod.

        Raises:
            TemplateError: The template is unknown or invalid, or its pod cannot run an episode.
            InvalidOverride: The episode or the task requests a setting that is not allowed for pods.
        """
        variables = template_variables(context)
        paths = blanks(variables)
        # If the template uses the image, try a form for each image: there are fewer images than pods.
        without_image = [path for path in paths if path != IMAGE]
        pod = self._fill(template, variables, paths) or self._fill(template, variables, without_image)
        if pod is None:
            pod = _parse(template, self._render(template, variables))
        try:
            return _complete(pod, context)
        except ValueError as error:
            raise TemplateError(f"pod template {template!r}: {error}") from None

    def _fill(
        self, template: str, variables: Mapping[str, Any], paths: Iterable[tuple[str, ...]]
    ) -> dict[str, Any] | None:
        """Return the pod from a form with blanks at these paths, or None if it must be rendered."""
        given = {name: dict(value) for name, value in variables.items()}
        values: dict[str, str] = {}
        for number, path in enumerate(paths):
            holder = given[path[0]]
            for name in path[1:-1]:
                holder[name] = holder = dict(holder[name])
            value, blank = holder[path[-1]], Blank(f"{self._mark}{number}-")
            if not isinstance(value, str) or not _FILLABLE.fullmatch(value):
                return None
            holder[path[-1]], values[blank.mark] = blank, value
        form = self._form(template, given)
        return {key: _filled(item, values) for key, item in form.items()} if form is not None else None

    def _form(self, template: str, given: dict[str, Any]) -> dict[str, Any] | None:
        """Return the form with these values, or None if the template uses blanks or is invalid.

        In both cases the pod is rendered, which raises the error of an invalid template.
        """
        key = (template, self._loader.signature(), msgspec.json.encode(given, enc_hook=mark_of))
        if key not in self._forms:
            try:
                text = self._render(template, given)
                tree: dict[str, Any] | None = _parse(template, text)
            except TemplateError:
                text, tree = "", None
            marks = [value for value in _texts(tree) if self._mark in value]
            # A mark in a comment, a key or a longer text cannot be filled in.
            is_whole = len(marks) == text.count(self._mark) and all(map(self._whole.fullmatch, marks))
            self._forms[key] = tree if is_whole else None
            if len(self._forms) > _FORMS:
                self._forms.popitem(last=False)
        self._forms.move_to_end(key)
        return self._forms[key]

    def _render(self, template: str, variables: Mapping[str, Any]) -> str:
        try:
            return self._text(template, variables)
        except jinja2.TemplateNotFound as error:
            raise TemplateError(self._not_found(error, template)) from None
        except jinja2.TemplateSyntaxError as error:
            where = f"{error.filename or error.name}, line {error.lineno}"
            raise TemplateError(f"pod template {template!r}: {where}: {error.message}") from None
        except TemplateError:
            raise
        except Exception as error:
            # An expression in a template can raise any exception. It is an error of the template, not of the operator.
            raise TemplateError(f"pod template {template!r}: {_place(error)}{_error_text(error)}") from error

    @property
    def templates(self) -> list[str]:
        """The names of all templates."""
        return self._loader.list_templates()

    def _text(self, template: str, variables: Mapping[str, Any]) -> str:
        self._environment.start_clock()
        pieces, size = [], 0
        for piece in self._environment.get_template(template).generate(variables):
            self._environment.check_clock()
            pieces.append(piece)
            size += len(piece)
            if size > _LARGEST_TEXT:
                raise TemplateError(f"pod template {template!r} produces more than {_LARGEST_TEXT:,} characters")
        return "".join(pieces)

    def _not_found(self, error: jinja2.TemplateNotFound, template: str) -> str:
        name = str(error.name or template)
        if error.message and error.message != name:
            return f"pod template {name!r}: {error.message}"
        known = self.templates
        guess = nearest(name, known)
        remedy = f"did you mean {guess!r}?" if guess else f"the templates are {', '.join(known)}"
        named = "" if name == template else f" (extended by {template!r})"
        return f"pod template {name!r}{named} does not exist; {remedy}"


def _place(error: Exception) -> str:
    """Return the file and line of the innermost template in the traceback. Jinja maps tracebacks to template lines."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.endswith(SUFFIX):
            return f"{frame.filename}, line {frame.lineno}: "
    return ""


def _error_text(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _complete(pod: dict[str, Any], context: PodContext) -> dict[str, Any]:
    """Complete the pod with the metadata and defaults that an episode requires.

    Raises:
        ValueError: The pod cannot run an episode.
    """
    if (pod.get("apiVersion"), pod.get("kind")) != ("v1", "Pod"):
        raise ValueError("is not a Pod; write apiVersion: v1 and kind: Pod")
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


def _parse(template: str, text: str) -> dict[str, Any]:
    """Parse the text as one YAML mapping of JSON values.

    Raises:
        TemplateError: The text is not such a mapping.
    """
    documents = list(read_yaml(text))
    for document in documents:
        for problem in document.problems:
            raise TemplateError(f"pod template {template!r}: {_located(text, problem)}")
    if len(documents) != 1:
        raise TemplateError(f"pod template {template!r} produces {len(documents)} documents; write one pod")
    if not isinstance(documents[0].value, dict):
        raise TemplateError(f"pod template {template!r} produces a document that is not a mapping; write one pod")
    value: dict[str, Any] = documents[0].value
    try:
        _check_values(value, (), set())
    except ValueError as error:
        raise TemplateError(f"pod template {template!r}: {error}") from None
    return value


def _located(text: str, problem: Any) -> str:
    what = f"{render_path(problem.path)}: {problem.message}" if problem.path else str(problem.message)
    lines = text.split("\n")
    if problem.line is None or problem.line > len(lines):
        return what
    return f"{what}\n  rendered line {problem.line}: {lines[problem.line - 1].strip()[:200]}"


def _check_values(value: Any, path: FieldPath, seen: set[int]) -> int:
    """Check that the value is JSON without aliases and not too large. Returns its number of values.

    Raises:
        ValueError: The value is not valid.
    """
    if not isinstance(value, dict | list):
        if not isinstance(value, str | bool | int | float | None) or value != value:
            raise ValueError(f"{render_path(path)}: {value!r} is not a value of JSON; quote it")
        return 1
    if id(value) in seen:
        raise ValueError(f"{render_path(path)}: repeats another value by an alias; write it out")
    seen.add(id(value))
    number = 1
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict) and not isinstance(key, str):
            raise ValueError(f"{render_path(path)}: the key {key!r} is not text; quote it")
        number += _check_values(item, (*path, key), seen)
        if number > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES:,} values")
    return number


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in the tree that is not a key."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _filled(tree: Any, values: Mapping[str, str]) -> Any:
    if isinstance(tree, str):
        return values.get(tree, tree)
    if isinstance(tree, list):
        return [_filled(item, values) for item in tree]
    return {key: _filled(item, values) for key, item in tree.items()} if isinstance(tree, dict) else tree


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
        raise ValueError(f"spec.restartPolicy: is {spec['restartPolicy']!r}; set Never: containers run once")
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            raise ValueError(f"spec.{name}: the sandbox would share this namespace with the node; remove it")
    if spec.get("shareProcessNamespace"):
        raise ValueError("spec.shareProcessNamespace: the sandbox could end the verifier; remove it")


def render_command(
    paths: Sequence[Path],
    *,
    settings: Settings,
    task_paths: Sequence[Path] = (),
    template: str | None = None,
    namespace: str = "default",
) -> str:
    """Return the pods of the first attempt of all episodes in the files, as YAML documents.

    For an EpisodeSet only the pod of its first episode is returned.

    Args:
        paths: Files with Episodes or EpisodeSets. They may also contain DebugTasks.
        settings: Settings of the installation.
        task_paths: Files with referenced DebugTasks.
        template: Name of a template that replaces the template of the episode and the task.
        namespace: Namespace of manifests without a namespace.

    Raises:
        ManifestError: A file is invalid, or the files do not contain an episode.
        TemplateError: The template is unknown or invalid.
    """
    resources = [resource for path in (*paths, *task_paths) for resource in load(path)]
    tasks = [resource for resource in resources if isinstance(resource, DebugTask)]
    renderer = Renderer(directory=settings.pod_templates_directory)
    pods = []
    for planned in _planned(resources, tasks):
        name = template or planned.episode.spec.pod_template or planned.task.spec.pod_template
        name = name or settings.default_pod_template
        pods.append(renderer.render(name, _context(planned, settings, namespace)))
    if not pods:
        raise ManifestError(
            f"{', '.join(map(str, paths))}: contains neither an Episode nor an EpisodeSet; add one of these kinds"
        )
    text: str = yaml.dump_all(pods, Dumper=_DumperWithoutAnchors, sort_keys=False, allow_unicode=True, width=120)
    return text


def check_templates(settings: Settings) -> None:
    """Render every template for a task whose repository is delivered and for a task whose image contains it.

    Raises:
        TemplateError: A template does not parse or does not produce a pod, or ``default_pod_template`` does not exist.
    """
    renderer = Renderer(directory=settings.pod_templates_directory)
    settings = settings.model_copy(update={"sandbox_image": settings.sandbox_image or "sandbox"})
    source = SourceSpec(files=(InlineFile(path="example.py", content=""),))
    for name in (settings.default_pod_template, *renderer.templates):
        for spec in (DebugTaskSpec(source=source), DebugTaskSpec()):
            episode = Episode(metadata=ObjectMeta(name="example"), spec=EpisodeSpec(task=spec))
            task = DebugTask(metadata=ObjectMeta(name="example"), spec=spec)
            renderer.render(name, _context(PlannedEpisode(episode=episode, task=task), settings, "default"))


class _DumperWithoutAnchors(yaml.SafeDumper):
    """A dumper without anchors. A list that occurs twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True for all values."""
        del data
        return True


def _planned(resources: Iterable[Any], tasks: Sequence[DebugTask]) -> Iterator[PlannedEpisode]:
    for resource in resources:
        if isinstance(resource, Episode):
            yield PlannedEpisode(episode=resource, task=find_task(resource, tasks))
        elif isinstance(resource, EpisodeSet):
            yield expand(resource, tasks)[0]


def _context(planned: PlannedEpisode, settings: Settings, namespace: str) -> PodContext:
    episode = planned.episode
    spec = episode.spec
    return PodContext(
        name=f"{episode.metadata.name}-1",
        namespace=episode.metadata.namespace or namespace,
        episode=episode.metadata.name,
        episode_uid=_UID,
        attempt=1,
        task=planned.task.spec,
        delivered=planned.task.spec.source is not None,
        # Example digests from a fixed key that clusters do not use.
        digests=token_digests(_KEY, episode_uid=_UID, attempt=1),
        labels=dict(episode.metadata.labels),
        overrides=spec.pod_overrides,
        active_deadline_seconds=spec.start_timeout_seconds + spec.active_deadline_seconds + _OVERHEAD_SECONDS,
        settings=settings,
    )
