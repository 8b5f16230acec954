"""Tests of honest suites whose code changes pytest and unittest. ``python -m tests.plugins`` has many more suites."""

import sys

import pytest

from tests.plugins.catalog import PLUGINS
from tests.support.calc import BUGGY, FIXED

# Plugins that are installed for dgym's own tests, and the option that loads each.
LOADED = {
    "anyio": "-p anyio",
    "hypothesis": "-p _hypothesis_pytestplugin",
    "pytest-asyncio": "-p pytest_asyncio.plugin",
    "pytest-cov": "-p pytest_cov.plugin",
    "pytest-timeout": "-p pytest_timeout",
    "pytest-xdist": "-p xdist.plugin",
}
SUITE = "import unittest, calc\nclass TestAdd(unittest.TestCase):\n    def test_add(self): self.assertSum(2, 3, 5)\n"
CONFTESTS = {
    "partial method": "import functools, unittest, pytest\n"
    "def same(self, a, b, c):\n    import calc\n    self.assertEqual(calc.add(a, b), c)\n"
    "unittest.TestCase.assertSum = functools.partialmethod(same)\n"
    "pytest.Function.reach = functools.partialmethod(print)\n",
    "values without code": "import unittest, pytest\n"
    "def same(self, a, b, c):\n    import calc\n    self.assertEqual(calc.add(a, b), c)\n"
    "class Provides:\n    def __get__(self, instance, owner): return ()\n"
    "for cls in (unittest.TestCase, unittest.TestResult, pytest.Function, pytest.Module):\n"
    "    cls.__provides__ = cls.__providedBy__ = Provides()\n"
    "unittest.TestCase.assertSum = same\nunittest.TestCase.debug = print\n",
    "failures swallowed by a wrapper": "import pytest, unittest\n"
    "def same(self, a, b, c):\n    import calc\n    self.assertEqual(calc.add(a, b), c)\n"
    "unittest.TestCase.assertSum = same\n"
    "@pytest.hookimpl(hookwrapper=True, tryfirst=True)\ndef pytest_runtest_call(item):\n    outcome = yield\n"
    "    if item.name == 'test_known': outcome.force_result(None)\n",
}


async def check(score, files, entrypoint):
    unrepaired = await score(files, {"calc.py": BUGGY + "# looked at\n"}, entrypoint)
    assert not unrepaired.resolved
    assert unrepaired.max_score
    repaired = await score(files, {"calc.py": FIXED}, entrypoint)
    assert repaired.resolved, repaired
    assert unrepaired.integrity.seen == repaired.integrity.seen == ()


@pytest.mark.parametrize("name", CONFTESTS)
async def test_a_conftest_that_patches_a_test_framework_is_not_tampering(score, name):
    files = {"calc.py": BUGGY, "conftest.py": CONFTESTS[name], "test_calc.py": SUITE}
    if "swallowed" in name:
        files["test_known.py"] = "def test_known(): assert 1 == 2\n"
    await check(score, files, "python -m pytest -q")


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOADED)
async def test_suites_of_plugins_are_scored_correctly(score, monkeypatch, name):
    monkeypatch.setattr("tests.integration.session.scoring.conftest.bare_python", lambda: sys.executable)
    plugin = next(each for each in PLUGINS if each.name == name)
    await check(score, dict(plugin.files), f"python -m pytest -q {LOADED[name]} {plugin.options}")
