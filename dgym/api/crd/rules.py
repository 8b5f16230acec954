"""Rules between fields as the API server checks them, in CEL.

They are those of ``dgym.api.rules`` as far as the server's budget of cost goes: it estimates what a rule costs from the
bounds of the fields, and refuses a definition that might cost too much. What is left to the operator, which ends such
an Episode as InvalidSpec: tests named in both lists, bytes (here: characters) of inline files, and tools, which rules
cannot see, since each may be a name or an object. For the same reason an Episode's tools can be changed; what counts is
what they are when an agent gets the episode.

That nothing is named twice in a list is the business of the list's type, which server-side apply uses as well.
"""

from collections.abc import Iterable

import msgspec

from dgym.api.episode import EpisodeSpec, EpisodeStatus
from dgym.api.episodeset import EpisodeSetSpec, EpisodeSetStatus, LabelRequirement, LabelSelector, SetPool
from dgym.api.fields import INLINE_LIMIT
from dgym.api.sandboxpool import SandboxPoolSpec, SandboxPoolStatus
from dgym.api.task import (
    ConfigMapSource,
    DebugTaskSpec,
    DebugTaskStatus,
    Environment,
    Evaluation,
    InlineFile,
    KeyToPath,
    Scoring,
    SourceSpec,
)

NAME_LIMIT = 58
"""Longest name of an Episode: with the number of the attempt it names a pod, whose host name has 63 characters."""


class Rule(msgspec.Struct, frozen=True):
    """A rule in CEL, the message of its violation, and the field that the message names."""

    rule: str
    message: str
    field: str = ""


_HASHES = Rule(
    "!has(self.requirements) || !self.requirements.exists(line, line.contains(' --hash='))"
    " || self.requirements.all(line, line.contains(' --hash='))",
    "some requirements have hashes and others have none; give each requirement its hashes, or none",
    ".requirements",
)

ATOMIC: frozenset[type] = frozenset({LabelSelector})
"""Structs that one owner sets as a whole."""

LIST_KEYS: dict[tuple[type, str], tuple[str, ...]] = {
    (ConfigMapSource, "items"): ("path",),
    (DebugTaskSpec, "env"): ("name",),
    (DebugTaskStatus, "conditions"): ("type",),
    (EpisodeSetSpec, "arms"): ("name",),
    (EpisodeSetSpec, "tasks"): ("name",),
    (EpisodeSetStatus, "arms"): ("name",),
    (EpisodeSetStatus, "failed_indexes"): ("reason",),
    (EpisodeSetStatus, "conditions"): ("type",),
    (EpisodeStatus, "conditions"): ("type",),
    (SandboxPoolStatus, "conditions"): ("type",),
    (Scoring, "hidden_files"): ("path",),
    (SourceSpec, "files"): ("path",),
}
"""Lists whose items have a name of their own, and the field that it is in."""

LIST_SETS: frozenset[tuple[type, str]] = frozenset(
    {(kind, name) for kind in (Scoring, Evaluation) for name in ("fail_to_pass", "pass_to_pass")}
)
"""Lists whose items differ from each other. All other lists are atomic: the order of commands and patterns matters."""


def immutable(names: Iterable[str], *, optional: Iterable[str], remedy: str) -> tuple[Rule, ...]:
    """One rule for each field that keeps its value; an optional one neither comes nor goes."""
    maybe = frozenset(optional)
    return tuple(
        Rule(
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
            if name in maybe
            else f"self.{name} == oldSelf.{name}",
            f"cannot be changed; {remedy}",
            f".{name}",
        )
        for name in names
    )


def _one_way(name: str) -> tuple[Rule, ...]:
    return (Rule("self || !oldSelf", f"{name} cannot be taken back; it stays true"),)


_PATH = (
    Rule(
        "!('/' + self.path + '/').matches('/[.]{0,2}/')",
        "has an empty, '.' or '..' part; write the plain path, such as src/calc.py",
        ".path",
    ),
    Rule(
        "!('/' + self.path + '/').contains('/.git/')",
        "lies in .git, which is never delivered; leave it out",
        ".path",
    ),
)

_SOURCES = ("configMapRef", "git", "archive", "localPath")
_CHOSEN = ", ".join(f"has(self.{name})" for name in _SOURCES)

_INLINE_SIZE = " + ".join(
    f"({given} ? self.{path}.map(f, (has(f.content) ? size(f.content) : 0)"
    f" + (has(f.contentBase64) ? size(f.contentBase64) * 3 / 4 : 0)).sum() : 0)"
    for given, path in (
        ("has(self.source) && has(self.source.files)", "source.files"),
        ("has(self.scoring) && has(self.scoring.hiddenFiles)", "scoring.hiddenFiles"),
    )
)

_IDLE_RULES = (Rule("!has(self.maxIdle) || self.maxIdle >= self.minIdle", "must not be less than minIdle", ".maxIdle"),)

RULES: dict[type | tuple[type, str], tuple[Rule, ...]] = {
    InlineFile: (
        Rule("has(self.content) != has(self.contentBase64)", "give exactly one of content and contentBase64"),
        *_PATH,
    ),
    KeyToPath: _PATH,
    SourceSpec: (
        Rule(
            f"[has(self.files) && size(self.files) > 0, {_CHOSEN}].filter(given, given).size() <= 1",
            f"at most one of files, {', '.join(_SOURCES)} can be given",
        ),
    ),
    Scoring: (
        Rule(
            "self.parser != 'exitStatus' || !((has(self.failToPass) && size(self.failToPass) > 0)"
            " || (has(self.passToPass) && size(self.passToPass) > 0))",
            "exitStatus knows no single tests; remove failToPass and passToPass or use pytest",
            ".parser",
        ),
        Rule(
            "!has(self.evaluation) || (self.parser == 'auto'"
            " && (!has(self.failToPass) || size(self.failToPass) == 0)"
            " && (!has(self.passToPass) || size(self.passToPass) == 0))",
            "stands beside failToPass, passToPass or parser; name the tests in it",
            ".evaluation",
        ),
    ),
    Evaluation: (
        Rule(
            "(self.parser == 'code') == has(self.parserCode)",
            "goes with parser 'code', and with no other; give both or neither",
            ".parserCode",
        ),
        Rule(
            "(self.rule == 'exact') == (has(self.outcomes) && size(self.outcomes) > 0)",
            "goes with rule 'exact', and with no other; give both or neither",
            ".outcomes",
        ),
        Rule(
            "(self.rule != 'exact') == ((has(self.failToPass) && size(self.failToPass) > 0)"
            " || (has(self.passToPass) && size(self.passToPass) > 0))",
            "failToPass and passToPass: name at least one test; with rule 'exact' name none",
            ".failToPass",
        ),
    ),
    Environment: (_HASHES,),
    DebugTaskSpec: (
        _HASHES,
        Rule(
            "!has(self.environment) || !has(self.environment.requirements) || size(self.environment.requirements) == 0"
            " || !has(self.requirements) || size(self.requirements) == 0",
            "requirements and environment.requirements are both given; keep exactly one of them",
            ".requirements",
        ),
        Rule(
            f"{_INLINE_SIZE} <= {INLINE_LIMIT}",
            f"inline files (source.files and scoring.hiddenFiles) hold more than {INLINE_LIMIT} bytes;"
            " move them to a ConfigMap (configMapRef), an archive, git or the image",
        ),
    ),
    LabelRequirement: (
        Rule(
            "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
            "is empty; operators In and NotIn need at least one value",
            ".values",
        ),
        Rule(
            "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || size(self.values) == 0",
            "operators Exists and DoesNotExist take no values; remove them",
            ".values",
        ),
    ),
    SandboxPoolSpec: _IDLE_RULES,
    SetPool: _IDLE_RULES,
    (EpisodeSpec, "cancel"): _one_way("cancel"),
    (EpisodeSetSpec, "cancel"): _one_way("cancel"),
}
"""By struct, or by struct and field: rules that hold wherever it stands."""

TASK_RULES = (
    Rule("self == oldSelf", "a DebugTask cannot be changed; create one with another name, or delete this one first"),
)
"""Of a DebugTask's spec."""

EPISODE_RULES = (
    Rule("!(has(self.task) && has(self.taskRef))", "taskRef and task are both given; keep exactly one of them"),
    Rule("has(self.task) || has(self.taskRef)", "taskRef is missing; give exactly one of taskRef and task"),
    *immutable(
        (
            *("taskRef", "task", "agent", "startTimeoutSeconds", "activeDeadlineSeconds", "backoffLimit"),
            *("maxDisruptions", "podTemplate", "podOverrides", "queueName"),
        ),
        optional=("taskRef", "task", "agent", "podTemplate", "podOverrides", "queueName"),
        remedy="delete the Episode and create it again, or create another one",
    ),
)
"""Of an Episode's spec, not of a set's template: suspend, cancel, priority and the TTL may change."""

_ANOTHER_SET = "delete the EpisodeSet and create it again, or create another one"

SET_RULES = (
    Rule(
        "!(has(self.taskSelector) && has(self.tasks) && size(self.tasks) > 0)",
        "tasks and taskSelector are both given; keep exactly one of them",
    ),
    Rule(
        "has(self.taskSelector) || (has(self.tasks) && size(self.tasks) > 0)",
        "tasks is missing; give tasks or taskSelector ('{}' selects every task)",
    ),
    Rule(
        "!has(self.template) || !(has(self.template.task) || has(self.template.taskRef))",
        "a set's tasks come from tasks or taskSelector; remove task and taskRef from the template",
        ".template",
    ),
    Rule(
        "!has(self.arms) || (has(self.template) && has(self.template.agent))"
        " || self.arms.all(arm, has(arm.agent) && has(arm.agent.name))",
        "an arm's agent.name is missing; name an agent in each arm or in template.agent",
        ".arms",
    ),
    *immutable(
        ("taskSelector", "tasks", "samples", "template", "priority"),
        optional=("taskSelector", "tasks", "template"),
        remedy=_ANOTHER_SET,
    ),
    # Lists with keys are equal in any order, and indexes follow the order of arms.
    Rule(
        "has(self.arms) == has(oldSelf.arms) && (!has(self.arms) || (self.arms == oldSelf.arms"
        " && self.arms.map(arm, arm.name) == oldSelf.arms.map(arm, arm.name)))",
        f"cannot be changed; {_ANOTHER_SET}",
        ".arms",
    ),
)
"""Of an EpisodeSet's spec: parallelism, suspend, cancel, maxFailed, costLimit and the TTL may change."""

EPISODE_NAME_RULES = (
    Rule(
        f"size(self.metadata.name) <= {NAME_LIMIT}",
        f"metadata.name of an Episode has at most {NAME_LIMIT} characters, since it begins the names of its pods",
    ),
)
"""Of an Episode as a whole."""
