"""What a repository's files mean: paths, policy, changes, edits, and breakpoints that follow them.

:mod:`dgym.workspace.patches` reads, applies and writes patches; :mod:`dgym.workspace.sources` obtains repositories.
All of it but the sources is pure. Trusted code reasons about an agent's files with these functions alone: it never
runs git, or anything else that a tree can configure, inside a workspace.
"""

from dgym.workspace.breakpoints import shift_for_change, shift_for_edit
from dgym.workspace.changes import Change, Changes, Refusal, compare, refuse
from dgym.workspace.paths import ancestors, decode_path, encode_path, normalize
from dgym.workspace.policy import Policy, is_generated, policy_files
from dgym.workspace.text import Span, decode_text, is_wide, line_count, resolve_span, rewrite_text, split_lines

__all__ = [
    "Change",
    "Changes",
    "Policy",
    "Refusal",
    "Span",
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
    "shift_for_change",
    "shift_for_edit",
    "split_lines",
]
