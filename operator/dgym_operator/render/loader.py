"""Where templates are found: an administrator's ``NAME.yaml.j2`` in a mounted directory beats the shipped one."""

from collections.abc import Callable
from pathlib import Path

from jinja2 import BaseLoader, Environment, TemplateNotFound

SHIPPED = Path(__file__).with_name("templates")
SUFFIX = ".yaml.j2"
_LARGEST = 256 * 1024

Signature = tuple[Path, int, int, int]


class TemplateLoader(BaseLoader):
    """Templates by name, without the suffix; they ``extend`` each other by these names too."""

    def __init__(self, directory: Path | None) -> None:
        self._directories = [SHIPPED] if directory is None else [directory, SHIPPED]

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        """The text, the path, and whether both are still what would be found."""
        del environment
        signature = self._find(template)
        if signature is None:
            raise TemplateNotFound(template)
        path, _, size, _ = signature
        if size > _LARGEST:
            raise TemplateNotFound(template, f"{path} has {size:,} bytes; a template has at most {_LARGEST:,}")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TemplateNotFound(template, f"{path} cannot be read: {error}") from error
        # A ConfigMap's directory changes by renaming a link, so the same path is another file afterwards.
        return text, str(path), lambda: self._find(template) == signature

    def list_templates(self) -> list[str]:
        """All names."""
        found = {path.name for directory in self._directories for path in directory.glob(f"*{SUFFIX}")}
        return sorted(name.removesuffix(SUFFIX) for name in found)

    def _find(self, name: str) -> Signature | None:
        if not name or "/" in name or "\0" in name or name.startswith("."):
            return None
        for directory in self._directories:
            path = directory / f"{name}{SUFFIX}"
            try:
                status = path.stat()
            except OSError:
                continue
            return path, status.st_mtime_ns, status.st_size, status.st_ino
        return None
