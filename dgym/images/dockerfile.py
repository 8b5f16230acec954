"""The Dockerfile of a task's image, rendered from its environment. Pure: nothing here reads or runs anything."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dgym.errors import ManifestError

ENVIRONMENT = "/opt/environment"
"""The virtual environment inside the image."""

USER = 1000
"""The user and group of the image's programs."""

_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9._+-]+)+")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that an image is made from, apart from the files beside the Dockerfile.

    Attributes:
        base: Image with ``python3`` of the version ``python``, by digest where one is known.
        base_identity: What identifies the content of ``base``, such as the image's id.
        python: Version of Python, such as "3.12".
        working_directory: Where the repository goes.
        system_packages: Debian packages, sorted.
        install: True if the repository is installed editable.
        variables: Environment variables of that installation, such as the version for setuptools-scm.
        files: Files that it needs in the repository, with their text, such as the version for versioningit.
    """

    base: str
    base_identity: str
    python: str
    working_directory: str
    system_packages: Sequence[str] = ()
    install: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def render(recipe: Recipe) -> str:
    """The Dockerfile. Its context has ``requirements.txt`` (with hashes), ``wheels/`` and ``repository/``.

    The layers that depend on the repository come last, so that the tasks of one repository share those before them.

    Raises:
        ManifestError: ``working_directory`` has characters that a Dockerfile would interpret.
    """
    directory = recipe.working_directory
    if not _PLAIN_PATH.fullmatch(directory):
        raise ManifestError(
            f"workingDirectory: {directory!r} has characters that a Dockerfile interprets; use letters, digits, '.', "
            "'_', '+', '-' and '/', such as /workspace"
        )
    python = f"{ENVIRONMENT}/bin/python"
    install = f"{python} -m pip install --no-cache-dir --disable-pip-version-check --no-index"
    wrong = f"the base has Python %d.%d and the task needs {recipe.python}; name another with --base"
    check = (
        "import sys; found = sys.version_info[:2]; "
        f"sys.exit('.'.join(map(str, found)) != {minor_version(recipe.python)!r} and {wrong!r} % found)"
    )
    lines = [
        f"# Python {minor_version(recipe.python)}, {recipe.base_identity}",
        f"ARG BASE={recipe.base}",
        "FROM ${BASE}",
        "USER 0:0",
        f"RUN python3 -c {shlex.quote(check)}",
    ]
    if recipe.system_packages:
        packages = " ".join(recipe.system_packages)
        lines += [
            "RUN apt-get update -qq \\",
            f" && apt-get install -y -qq --no-install-recommends {packages} \\",
            " && rm -rf /var/lib/apt/lists/*",
        ]
    lines += [
        "RUN --mount=type=bind,target=/mnt \\",
        f"    python3 -m venv {ENVIRONMENT} \\",
        f" && {install} --find-links /mnt/wheels \\",
        "      --require-hashes -r /mnt/requirements.txt",
        f"RUN echo 'agent:x:{USER}:{USER}:agent:/home/agent:/bin/sh' >>/etc/passwd \\",
        f" && echo 'agent:x:{USER}:' >>/etc/group \\",
        f" && mkdir -p /home/agent && chown {USER}:{USER} /home/agent",
        f"ENV PATH={ENVIRONMENT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8",
        f"COPY --chown={USER}:{USER} repository/ {directory}/",
        f"WORKDIR {directory}",
    ]
    if recipe.install:
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in sorted(recipe.variables.items()))
        for path, text in sorted(recipe.files.items()):
            escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
            lines.append(f"RUN printf %b {shlex.quote(escaped)} >{shlex.quote(path)}")
        lines += [
            f"RUN {variables}{install} --no-deps --no-build-isolation --editable . \\",
            f" && chown -R {USER}:{USER} {directory}",
        ]
    # Numeric: Kubernetes cannot verify that a user name is not root.
    lines += [f"USER {USER}:{USER}", 'CMD ["python"]']
    return "\n".join(lines) + "\n"


def minor_version(version: str) -> str:
    """Major and minor number: ``3.12`` of ``3.12.1``."""
    return ".".join(version.split(".")[:2])
