"""Paths, policies, changes and edits of the files of a repository.

:mod:`dgym.workspace.patches` reads, applies and writes patches. :mod:`dgym.workspace.sources` obtains repositories.
Everything except the sources is pure. Trusted code handles an agent's files only with these functions. It never runs
git inside a workspace, nor another program that files of the workspace can configure.
"""

from dgym.workspace._changes import Changes, Refusal, compare, refuse
from dgym.workspace._paths import ancestors, decode_path, encode_path, normalize
from dgym.workspace._policy import Policy, is_generated, policy_files
from dgym.workspace._text import (
    LineMatcher,
    LineRange,
    decode_text,
    is_wide,
    line_count,
    resolve_span,
    rewrite_text,
    split_lines,
)

__all__ = [
    "Changes",
    "LineMatcher",
    "LineRange",
    "Policy",
    "Refusal",
    "ancestors",
    "compare",
    "decode_path",
    "decode_text",
    "encode_path",
    "is_generated",
    "is_wide",
    "line_count",
    "normalize",
    "policy_files",
    "refuse",
    "resolve_span",
    "rewrite_text",
    "split_lines",
]
