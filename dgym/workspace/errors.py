"""What can be wrong with a path, an edit or a patch. Tools turn these into answers for the agent."""

from dgym.errors import DgymError


class PathError(DgymError):
    """A path is empty, malformed or outside the workspace."""


class EditError(DgymError):
    """A range of lines does not exist, or new text cannot be written in the file's encoding."""


class PatchError(DgymError):
    """A patch is malformed or does not apply; the message names file, hunk and line of the patch."""
