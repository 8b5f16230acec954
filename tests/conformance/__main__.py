"""python -m tests.conformance DIRECTORY [--count N] [--record]: compare all grades, or write the sample first."""

import argparse
import json
import sys
from pathlib import Path

from tests.conformance.cases import REPOSITORIES, make_cases
from tests.conformance.graders import Harness, ours

SAMPLE = Path(__file__).with_name("sample.jsonl")
SAMPLE_COUNT = 200


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    harness = Harness(arguments.directory)
    missing = sorted(set(harness.parsers) - REPOSITORIES.keys())
    if missing:
        print(f"swebench {harness.version} has parsers of Python repositories without cases: {', '.join(missing)}")
        return 1
    if arguments.record:
        lines = [{"swebench": harness.version}]
        lines += [{**case._asdict(), "official": harness.grade(case)} for case in make_cases(SAMPLE_COUNT)]
        SAMPLE.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return compare(harness, make_cases(arguments.count))


def compare(harness, cases):
    """Print a line for each parser. Returns 1 if a grade differs."""
    totals = {name: [0, 0, 0, 0] for name in REPOSITORIES}
    differing = []
    for case in cases:
        theirs, mine = harness.grade(case), ours(case)
        count = totals[case.parser]
        count[0] += 1
        count[1] += theirs.resolved
        count[2] += theirs.graded
        if theirs != mine:
            count[3] += 1
            differing.append((case, theirs, mine))
    print(f"swebench {harness.version}: {len(cases)} cases")
    print(f"{'parser':<16}{'cases':>8}{'graded':>8}{'resolved':>10}{'differing':>11}")
    for name, (count, resolved, graded, wrong) in totals.items():
        print(f"{name:<16}{count:>8}{graded:>8}{resolved:>10}{wrong:>11}")
    for case, theirs, mine in differing[:10]:
        print(f"\ncase {case.number} ({case.parser}, {case.rule}): official {theirs}, dgym {mine}\n{case}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
