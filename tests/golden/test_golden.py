"""Tests that user-visible output equals the golden files. ``python -m tests.golden --write`` updates the files."""

import pytest

from tests.golden.files import FILES, OUTPUTS, differences
from tests.golden.simulation import CHUNK, SEEDS, TOLERATED, golden_reasons, reasons
from tests.support.required import built

ONLY_IN_TEST_ALL = {"chart": pytest.mark.thorough, "walkthroughs": pytest.mark.thorough}


@pytest.mark.parametrize("name", [pytest.param(name, marks=ONLY_IN_TEST_ALL.get(name, ())) for name in OUTPUTS])
def test_golden_files_agree(name, caplog):
    caplog.set_level("CRITICAL")
    if name == "chart":
        built("helm")
    found = [f"{path}\n{difference}" for path, difference in differences(name, OUTPUTS[name]())]
    assert not found, "a decision, or a mistake:\n" + "\n".join(found)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_simulated_episodes_end_as_before(first, caplog):
    caplog.set_level("CRITICAL")
    golden = golden_reasons((FILES / "simulation.txt").read_text("utf-8"), first)
    now = {(seed, name): end for seed in range(first, first + CHUNK) for name, end in reasons(seed).items()}
    different = {key: (reason, now.get(key)) for key, reason in golden.items() if now.get(key) != reason}
    assert len(different) <= TOLERATED * len(golden), different
