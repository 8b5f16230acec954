"""What goes wrong between an episode and its pod."""

from dgym.errors import DgymError


class TemplateError(DgymError):
    """A template is unknown or wrong, or what it gives is not a pod that an episode can run in.

    The message names the template and, where there is one, the line.
    """


class InvalidOverride(TemplateError):
    """The episode or its task asks for what no pod may have; the message names the field and the remedy."""
