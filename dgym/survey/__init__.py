"""Find the tests, the requirements and the Python version of a repository from its files, without executing them."""

from dgym.survey._files import Survey, protected_patterns, read_text, survey, test_folders
from dgym.survey._requirements import (
    LIMIT,
    Requirements,
    RequirementsSource,
    allows,
    distribution_of,
    read_requirements,
)

__all__ = [
    "LIMIT",
    "Requirements",
    "RequirementsSource",
    "Survey",
    "allows",
    "distribution_of",
    "protected_patterns",
    "read_requirements",
    "read_text",
    "survey",
    "test_folders",
]
