"""Builds a release of the commit that is checked out, or shows that it can be built twice.

python -m hack.release                      into dist/: wheel, source distribution, chart, images, SBOMs, checksums
python -m hack.release --check              build twice in different environments, compare, then use the wheel
python -m hack.release --images sidecar     build only these images; "" builds no image
python -m hack.release --registry NAME      registry of the images in the packaged chart
"""

import argparse
import sys
import tempfile
from pathlib import Path

from hack.release.build import IMAGES, Builder, ReleaseError, check, export

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    """Build the release. Return 1 if that fails or if two builds differ."""
    parser = argparse.ArgumentParser(prog="python -m hack.release", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="a directory that is empty or not there")
    parser.add_argument("--images", default=",".join(IMAGES), help=f"of {', '.join(IMAGES)}; empty: none")
    parser.add_argument("--registry", default="", help="registry and path before the names of images in the chart")
    parser.add_argument("--check", action="store_true", help="build twice and compare")
    options = parser.parse_args(arguments)
    images = [name for name in options.images.split(",") if name]
    if unknown := set(images) - set(IMAGES):
        parser.error(f"--images {', '.join(sorted(unknown))}: give some of {', '.join(IMAGES)}")
    output = options.output.resolve()
    if output.exists() and any(output.iterdir()):
        parser.error(f"--output {output}: is not empty; remove it first")
    try:
        if options.check:
            check(ROOT, output, images, options.registry)
        else:
            with tempfile.TemporaryDirectory(prefix="dgym-release-") as name:
                source = Path(name, "source")
                epoch = export(ROOT, source)
                Builder(source, output, epoch=epoch, registry=options.registry).build(images)
    except ReleaseError as error:
        print(f"hack/release: {error}", file=sys.stderr)
        return 1
    for path in sorted(output.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.name}")
    if options.check:
        print("built twice: the same bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
