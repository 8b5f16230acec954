"""Rules between fields, which no type expresses: unions, total sizes, duplicates, paths that leave the repository."""

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dgym.api.episode import Episode, EpisodeSpec, ToolSpec
from dgym.api.episodeset import EpisodeSet, EpisodeSetSpec, LabelSelector, SetPool
from dgym.api.fields import INLINE_LIMIT
from dgym.api.sandboxpool import SandboxPool, SandboxPoolSpec
from dgym.api.task import DebugTask, DebugTaskSpec, Evaluation, InlineFile, Scoring, SourceSpec, without_hashes
from dgym.errors import FieldPath, Problem


def check_rules(resource: DebugTask | Episode | EpisodeSet | SandboxPool) -> list[Problem]:
    """The problems of a resource whose fields are each valid."""
    if isinstance(resource, DebugTask):
        return list(_task(resource.spec, ("spec",)))
    if isinstance(resource, Episode):
        return list(_episode(resource.spec, ("spec",)))
    if isinstance(resource, SandboxPool):
        return list(_pool(resource.spec, ("spec",)))
    return list(_set(resource))


def _pool(spec: SandboxPoolSpec | SetPool, path: FieldPath) -> Iterator[Problem]:
    if spec.max_idle is not None and spec.max_idle < spec.min_idle:
        yield Problem((*path, "maxIdle"), f"is {spec.max_idle}, less than minIdle ({spec.min_idle})")


def _episode(spec: EpisodeSpec, path: FieldPath) -> Iterator[Problem]:
    if spec.task is not None and spec.task_ref is not None:
        yield Problem((*path, "taskRef"), "stands beside 'task'; keep exactly one of taskRef and task")
    elif spec.task is None and spec.task_ref is None:
        yield Problem((*path, "taskRef"), "is missing; give exactly one of taskRef and task")
    if spec.task is not None:
        yield from _task(spec.task, (*path, "task"))
    yield from _tools(spec.tools, path)


def _tools(tools: Iterable[str | ToolSpec], path: FieldPath) -> Iterator[Problem]:
    names = [tool if isinstance(tool, str) else tool.name for tool in tools]
    yield from _twice(names, (*path, "tools"), "tool")


def _set(resource: EpisodeSet) -> Iterator[Problem]:
    spec = resource.spec
    path: FieldPath = ("spec",)
    if spec.task_selector is not None and spec.tasks:
        yield Problem((*path, "tasks"), "stands beside 'taskSelector'; keep exactly one of tasks and taskSelector")
    elif spec.task_selector is None and not spec.tasks:
        yield Problem((*path, "tasks"), "is missing; give tasks or taskSelector ('{}' selects every task)")
    if spec.task_selector is not None:
        yield from _selector(spec.task_selector, (*path, "taskSelector"))
    yield from _twice([task.name for task in spec.tasks], (*path, "tasks"), "task")
    for name, value in (("task", spec.template.task), ("taskRef", spec.template.task_ref)):
        if value is not None:
            yield Problem((*path, "template", name), "a set's tasks come from tasks or taskSelector; remove this field")
    yield from _tools(spec.template.tools, (*path, "template"))
    yield from _arms(spec, (*path, "arms"))
    if spec.pool is not None:
        yield from _pool(spec.pool, (*path, "pool"))


def _arms(spec: EpisodeSetSpec, path: FieldPath) -> Iterator[Problem]:
    yield from _twice([arm.name for arm in spec.arms], path, "arm", lambda index: (*path, index, "name"))
    for index, arm in enumerate(spec.arms):
        yield from _tools(arm.tools, (*path, index))
        if spec.template.agent is None and arm.agent.name is None:
            yield Problem((*path, index, "agent", "name"), "is missing; name an agent here or in template.agent")


def _selector(selector: LabelSelector, path: FieldPath) -> Iterator[Problem]:
    for index, requirement in enumerate(selector.match_expressions):
        field = (*path, "matchExpressions", index, "values")
        if requirement.operator in ("In", "NotIn") and not requirement.values:
            yield Problem(field, f"is empty; operator {requirement.operator} needs at least one value")
        if requirement.operator in ("Exists", "DoesNotExist") and requirement.values:
            yield Problem(field, f"operator {requirement.operator} takes no values; remove them")


def _task(spec: DebugTaskSpec, path: FieldPath) -> Iterator[Problem]:
    files: tuple[InlineFile, ...] = ()
    if spec.source is not None:
        files = spec.source.files
        yield from _source(spec.source, (*path, "source"))
    if spec.requirements and spec.environment is not None and spec.environment.requirements:
        yield Problem((*path, "requirements"), "stands beside 'environment.requirements'; keep exactly one of them")
    yield from _hashes(spec.requirements, (*path, "requirements"))
    if spec.environment is not None:
        yield from _hashes(spec.environment.requirements, (*path, "environment", "requirements"))
    yield from _scoring(spec.scoring, (*path, "scoring"))
    yield from _twice([variable.name for variable in spec.env], (*path, "env"), "variable")
    size = sum(_size(file) for file in (*files, *spec.scoring.hidden_files))
    if size > INLINE_LIMIT:
        remedy = "move them to a ConfigMap (configMapRef), an archive, git or the image"
        yield Problem((*path, "source", "files"), f"inline files hold {size} bytes, more than {INLINE_LIMIT}; {remedy}")


def _hashes(requirements: Sequence[str], path: FieldPath) -> Iterator[Problem]:
    for index in without_hashes(requirements):
        remedy = "give each requirement its hashes, or none"
        yield Problem((*path, index), f"{requirements[index]!r} has no hash, and others have; {remedy}")


def _source(source: SourceSpec, path: FieldPath) -> Iterator[Problem]:
    given = {
        "files": bool(source.files),
        "configMapRef": source.config_map_ref is not None,
        "git": source.git is not None,
        "archive": source.archive is not None,
        "localPath": source.local_path is not None,
    }
    chosen = [name for name, present in given.items() if present]
    if len(chosen) > 1:
        yield Problem(path, f"{' and '.join(chosen)} are given; at most one of {', '.join(given)}")
    yield from _files(source.files, (*path, "files"))
    if source.config_map_ref is not None:
        items_path = (*path, "configMapRef", "items")
        yield from _paths([item.path for item in source.config_map_ref.items], items_path)


def _scoring(scoring: Scoring, path: FieldPath) -> Iterator[Problem]:
    yield from _files(scoring.hidden_files, (*path, "hiddenFiles"))
    yield from _twice(scoring.fail_to_pass, (*path, "failToPass"), "test")
    yield from _twice(scoring.pass_to_pass, (*path, "passToPass"), "test")
    both = sorted(set(scoring.fail_to_pass) & set(scoring.pass_to_pass))
    if both:
        yield Problem((*path, "passToPass"), f"{both[0]!r} is in failToPass too; name each test once")
    if scoring.parser == "exitStatus" and (scoring.fail_to_pass or scoring.pass_to_pass):
        yield Problem(
            (*path, "parser"), "exitStatus knows no single tests; remove failToPass and passToPass or use pytest"
        )
    if scoring.evaluation is not None:
        yield from _evaluation(scoring, scoring.evaluation, (*path, "evaluation"))


def _evaluation(scoring: Scoring, evaluation: Evaluation, path: FieldPath) -> Iterator[Problem]:
    if scoring.fail_to_pass or scoring.pass_to_pass or scoring.parser != "auto":
        yield Problem(path, "stands beside failToPass, passToPass or parser; name the tests in it")
    if (evaluation.parser == "code") != (evaluation.parser_code is not None):
        yield Problem((*path, "parserCode"), "goes with parser 'code', and with no other; give both or neither")
    exact = evaluation.rule == "exact"
    if exact != bool(evaluation.outcomes):
        yield Problem((*path, "outcomes"), "goes with rule 'exact', and with no other; give both or neither")
    elif bool(evaluation.fail_to_pass or evaluation.pass_to_pass) == exact:
        remedy = "remove them, the rule exact has outcomes" if exact else "name at least one test"
        yield Problem((*path, "failToPass"), f"failToPass and passToPass do not fit the rule; {remedy}")
    yield from _twice(evaluation.fail_to_pass, (*path, "failToPass"), "test")
    yield from _twice(evaluation.pass_to_pass, (*path, "passToPass"), "test")
    both = sorted(set(evaluation.fail_to_pass) & set(evaluation.pass_to_pass))
    if both:
        yield Problem((*path, "passToPass"), f"{both[0]!r} is in failToPass too; name each test once")


def _files(files: Sequence[InlineFile], path: FieldPath) -> Iterator[Problem]:
    yield from _paths([file.path for file in files], path)
    for index, file in enumerate(files):
        if (file.content is None) == (file.content_base64 is None):
            yield Problem((*path, index), f"{file.path}: give exactly one of content and contentBase64")
        elif file.content_base64 is not None and not _is_base64(file.content_base64):
            yield Problem((*path, index, "contentBase64"), "is not base64; encode the file with 'base64 -w0'")


def _paths(names: Sequence[str], path: FieldPath) -> Iterator[Problem]:
    yield from _twice(names, path, "path", lambda index: (*path, index, "path"))
    for index, name in enumerate(names):
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts):
            yield Problem((*path, index, "path"), f"{name!r} has an empty, '.' or '..' part; write the plain path")
        elif ".git" in parts:
            yield Problem((*path, index, "path"), f"{name!r} lies in .git, which is never delivered; leave it out")


def _twice(
    names: Iterable[str], path: FieldPath, what: str, at: Callable[[int], FieldPath] | None = None
) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield Problem(at(index) if at else (*path, index), f"{what} {name!r} is named twice; keep one")
        seen.add(name)


def _is_base64(text: Any) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _size(file: InlineFile) -> int:
    if file.content_base64 is not None:
        return len(file.content_base64) * 3 // 4
    return len((file.content or "").encode())
