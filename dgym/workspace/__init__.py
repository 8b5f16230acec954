"""What a repository's files mean: paths, policy, changes, patches, edits and where the files come from.

Everything here is pure but :mod:`~dgym.workspace.sources`, which reads local directories and fetches remote ones.
The trusted side reasons about an agent's files with these functions alone: it never runs git, or anything else a
tree can configure, inside a workspace.
"""
