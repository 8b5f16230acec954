"""List the golden files that differ, or with ``--write`` write them again. Exit status 1 if one differs."""

import argparse
import sys

from hack.cluster.build import find_binary
from tests.golden.files import FILES, OUTPUTS, differences
from tests.golden.simulation import simulation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files")
    outputs = {**OUTPUTS, "simulation": simulation}
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(sorted(outputs))}; default: all")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - outputs.keys()):
        parser.error(f"NAME is {', '.join(unknown)}; it must be one of {', '.join(sorted(outputs))}")
    status = 0
    for name, output in outputs.items():
        if options.names and name not in options.names:
            continue
        if name == "chart" and find_binary("helm") is None:
            print("chart: skipped, no helm (make binaries builds it)", file=sys.stderr)
            continue
        for path, difference in differences(name, output(), write=options.write):
            print(f"{FILES / path} {'written' if options.write else 'differs'}\n{difference}")
            status = 0 if options.write else 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
