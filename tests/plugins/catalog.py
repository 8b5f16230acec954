"""What is installed from PyPI for each plugin or framework, and a suite of it for a module that adds wrongly."""

from collections.abc import Mapping
from typing import NamedTuple

from tests.support.calc import BUGGY


class Plugin(NamedTuple):
    """``suite`` is ``test_calc.py`` or, where it is a mapping, more files. ``requirements`` are added to the name."""

    name: str
    suite: str | Mapping[str, str]
    requirements: tuple[str, ...] = ()
    options: str = ""

    @property
    def files(self) -> Mapping[str, str]:
        """The repository with the fault."""
        files = {"test_calc.py": self.suite} if isinstance(self.suite, str) else self.suite
        return {"calc.py": BUGGY, **files}


PLAIN = "import calc\ndef test_add(): assert calc.add(2, 3) == 5\n"
PLUGINS = (
    Plugin(
        "allure-pytest",
        "import allure, calc\n@allure.title('sum')\ndef test_add():\n"
        "    with allure.step('add'):\n        assert calc.add(2, 3) == 5\n",
        options="--alluredir=/tmp/allure",
    ),
    Plugin(
        "anyio",
        "import pytest, calc\n@pytest.mark.anyio\nasync def test_add(): assert calc.add(2, 3) == 5\n"
        "@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n",
    ),
    Plugin(
        "absl-py",
        "from absl.testing import absltest, parameterized\nimport calc\n"
        "class TestAdd(parameterized.TestCase):\n    @parameterized.parameters((2, 3, 5), (0, 0, 0))\n"
        "    def test_add(self, a, b, c): self.assertEqual(calc.add(a, b), c)\n",
    ),
    Plugin(
        "ddt",
        "import unittest, ddt, calc\n@ddt.ddt\nclass TestAdd(unittest.TestCase):\n"
        "    @ddt.data((2, 5), (3, 6))\n    @ddt.unpack\n"
        "    def test_add(self, a, c): self.assertEqual(calc.add(a, 3), c)\n",
    ),
    Plugin(
        "dirty-equals",
        "from dirty_equals import IsInt, IsPositive\nimport calc\n"
        "def test_add(): assert calc.add(2, 3) == IsInt & IsPositive\n",
    ),
    Plugin(
        "flaky",
        "from flaky import flaky\nimport calc\nruns = []\n@flaky(max_runs=3)\ndef test_add():\n"
        "    runs.append(1)\n    assert len(runs) > 1\n    assert calc.add(2, 3) == 5\n",
    ),
    Plugin(
        "hypothesis",
        "from hypothesis import given, strategies as st\nimport calc\n"
        "@given(st.integers(), st.integers())\ndef test_add(a, b): assert calc.add(a, b) == b + a\n",
    ),
    Plugin(
        "parameterized",
        "import unittest, calc\nfrom parameterized import parameterized\n"
        "class TestAdd(unittest.TestCase):\n    @parameterized.expand([(2, 3, 5), (1, 1, 2)])\n"
        "    def test_add(self, a, b, c): self.assertEqual(calc.add(a, b), c)\n",
    ),
    Plugin(
        "pyfakefs",
        "import calc\ndef test_add(fs):\n    fs.create_file('/x/data', contents='5')\n"
        "    assert str(calc.add(2, 3)) == open('/x/data').read()\n",
    ),
    Plugin(
        "PyHamcrest",
        "from hamcrest import assert_that, equal_to\nimport calc\n"
        "def test_add(): assert_that(calc.add(2, 3), equal_to(5))\n",
    ),
    Plugin(
        "pytest-asyncio",
        "import pytest, calc\n@pytest.mark.asyncio\nasync def test_add():\n    assert calc.add(2, 3) == 5\n",
    ),
    Plugin(
        "pytest-aiohttp",
        "from aiohttp import web\nimport calc\nasync def test_add(aiohttp_client):\n"
        "    app = web.Application()\n    async def get(request): return web.Response(text=str(calc.add(2, 3)))\n"
        "    app.router.add_get('/', get)\n    client = await aiohttp_client(app)\n"
        "    assert await (await client.get('/')).text() == '5'\n",
        options="--asyncio-mode=auto",
    ),
    Plugin(
        "pytest-bdd",
        {
            "sum.feature": "Feature: sums\n  Scenario: two numbers\n    When 2 and 3 are added\n    Then it is 5\n",
            "test_calc.py": "from pytest_bdd import scenarios, when, then\nimport calc\nscenarios('sum.feature')\n"
            "@when('2 and 3 are added', target_fixture='total')\ndef total(): return calc.add(2, 3)\n"
            "@then('it is 5')\ndef check(total): assert total == 5\n",
        },
    ),
    Plugin("pytest-benchmark", "import calc\ndef test_add(benchmark): assert benchmark(calc.add, 2, 3) == 5\n"),
    Plugin(
        "pytest-cases",
        "from pytest_cases import parametrize_with_cases\nimport calc\n"
        "def case_small(): return 2, 3, 5\ndef case_equal(): return 1, 1, 2\n"
        "@parametrize_with_cases('a, b, c', cases='.')\ndef test_add(a, b, c): assert calc.add(a, b) == c\n",
        ("pytest<9",),
    ),
    Plugin(
        "pytest-check",
        "import calc\ndef test_add(check):\n    check.equal(calc.add(2, 3), 5)\n    check.equal(calc.add(1, 1), 2)\n",
    ),
    Plugin("pytest-cov", PLAIN, options="--cov=calc --cov-report=term"),
    Plugin(
        "pytest-datadir",
        {
            "test_calc.py": "import calc\ndef test_add(shared_datadir):\n"
            "    assert str(calc.add(2, 3)) == (shared_datadir / 'five').read_text()\n",
            "data/five": "5",
        },
    ),
    Plugin("pytest-describe", "import calc\ndef describe_add():\n    def of_two(): assert calc.add(2, 3) == 5\n"),
    Plugin(
        "pytest-django",
        {
            "settings_of_test.py": "SECRET_KEY = 'x'\nINSTALLED_APPS = ['django.contrib.contenttypes']\n"
            "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}\n",
            "test_calc.py": "import pytest, calc\nfrom django.test import TestCase\n@pytest.mark.django_db\n"
            "def test_add():\n    from django.contrib.contenttypes.models import ContentType\n"
            "    assert calc.add(2, 3) == 5 + ContentType.objects.filter(pk=-1).count()\n"
            "class TestAdd(TestCase):\n    def test_equal(self): self.assertEqual(calc.add(1, 1), 2)\n",
        },
        ("django",),
        "--ds=settings_of_test",
    ),
    Plugin(
        "pytest-env",
        {
            "pytest.ini": "[pytest]\nenv =\n    FIVE=5\n",
            "test_calc.py": "import os, calc\ndef test_add(): assert str(calc.add(2, 3)) == os.environ['FIVE']\n",
        },
    ),
    Plugin(
        "pytest-flask",
        "import flask, pytest, calc\n@pytest.fixture\ndef app():\n    app = flask.Flask('x')\n"
        "    app.route('/')(lambda: str(calc.add(2, 3)))\n    return app\n"
        "def test_add(client): assert client.get('/').data == b'5'\n",
    ),
    Plugin(
        "pytest-forked",
        "import pytest, calc\n@pytest.mark.forked\ndef test_add(): assert calc.add(2, 3) == 5\n",
        requirements=("pytest<9",),
    ),
    Plugin(
        "pytest-freezer",
        "import datetime, calc\ndef test_add(freezer):\n    freezer.move_to('2020-02-05')\n"
        "    assert calc.add(2, 3) == datetime.date.today().day\n",
    ),
    Plugin("pytest-html", PLAIN, options="--html=/tmp/report.html"),
    Plugin(
        "pytest-httpserver",
        "import urllib.request, calc\ndef test_add(httpserver):\n"
        "    httpserver.expect_request('/').respond_with_data(str(calc.add(2, 3)))\n"
        "    assert urllib.request.urlopen(httpserver.url_for('/')).read() == b'5'\n",
    ),
    Plugin(
        "pytest-httpx",
        "import httpx, calc\ndef test_add(httpx_mock):\n    httpx_mock.add_response(text='5')\n"
        "    assert str(calc.add(2, 3)) == httpx.get('http://x/').text\n",
    ),
    Plugin("pytest-icdiff", PLAIN),
    Plugin("pytest-json-report", PLAIN, options="--json-report --json-report-file=/tmp/report.json"),
    Plugin(
        "pytest-lazy-fixtures",
        "import pytest, calc\nfrom pytest_lazy_fixtures import lf\n@pytest.fixture\n"
        "def two(): return 2\n@pytest.mark.parametrize('a', [lf('two')])\n"
        "def test_add(a): assert calc.add(a, 3) == 5\n",
    ),
    Plugin(
        "pytest-mock",
        "import calc\ndef test_add(mocker):\n    spy = mocker.spy(calc, 'add')\n"
        "    assert calc.add(2, 3) == 5\n    spy.assert_called_once_with(2, mocker.ANY)\n"
        "    mocker.patch('builtins.sum', return_value=7)\n    assert sum([]) == 7\n",
    ),
    Plugin(
        "pytest-order",
        "import pytest, calc\n@pytest.mark.order(2)\ndef test_add(): assert calc.add(2, 3) == 5\n"
        "@pytest.mark.order(1)\ndef test_zero(): assert calc.add(0, 0) == 0\n",
    ),
    Plugin("pytest-randomly", PLAIN + "def test_equal(): assert calc.add(1, 1) == 2\n"),
    Plugin(
        "pytest-regressions",
        {
            "test_calc.py": "import calc\ndef test_add(data_regression):\n"
            "    data_regression.check({'sum': calc.add(2, 3)})\n",
            "test_calc/test_add.yml": "sum: 5\n",
        },
    ),
    Plugin(
        "pytest-repeat", "import pytest, calc\n@pytest.mark.repeat(3)\ndef test_add(): assert calc.add(2, 3) == 5\n"
    ),
    Plugin(
        "pytest-rerunfailures",
        "import pytest, calc\nruns = []\n@pytest.mark.flaky(reruns=2)\ndef test_add():\n"
        "    runs.append(1)\n    assert len(runs) > 1\n    assert calc.add(2, 3) == 5\n",
    ),
    Plugin(
        "pytest-retry",
        "import pytest, calc\nruns = []\n@pytest.mark.flaky(retries=2)\ndef test_add():\n"
        "    runs.append(1)\n    assert len(runs) > 1\n    assert calc.add(2, 3) == 5\n",
    ),
    Plugin(
        "pytest-snapshot",
        {
            "test_calc.py": "import calc\ndef test_add(snapshot):\n"
            "    snapshot.assert_match(str(calc.add(2, 3)), 'sum')\n",
            "snapshots/test_calc/test_add/sum": "5",
        },
    ),
    Plugin(
        "pytest-socket",
        "import pytest, socket, calc\nfrom pytest_socket import SocketBlockedError\n"
        "def test_add(socket_disabled):\n    with pytest.raises(SocketBlockedError): socket.socket()\n"
        "    assert calc.add(2, 3) == 5\n",
    ),
    Plugin(
        "pytest-subprocess",
        "import subprocess, calc\ndef test_add(fp):\n    fp.register(['sum'], stdout='5')\n"
        "    assert str(calc.add(2, 3)) == subprocess.check_output(['sum']).decode().strip()\n",
    ),
    Plugin(
        "pytest-subtests",
        "import calc\ndef test_add(subtests):\n    for number in range(3):\n"
        "        with subtests.test(number=number): assert calc.add(number, 1) == number + 1\n",
        ("pytest<9",),
    ),
    Plugin("pytest-sugar", PLAIN),
    Plugin(
        "pytest-timeout",
        "import pytest, calc\n@pytest.mark.timeout(20)\ndef test_add():\n    assert calc.add(2, 3) == 5\n",
        options="--timeout=30",
    ),
    Plugin(
        "pytest-trio",
        "import pytest, calc\n@pytest.mark.trio\nasync def test_add(nursery):\n    assert calc.add(2, 3) == 5\n",
    ),
    Plugin("pytest-xdist", PLAIN, options="-n 2"),
    Plugin(
        "requests-mock",
        "import requests, calc\ndef test_add(requests_mock):\n"
        "    requests_mock.get('http://x/', text='5')\n"
        "    assert str(calc.add(2, 3)) == requests.get('http://x/').text\n",
        ("requests",),
    ),
    Plugin(
        "sybil",
        {
            "conftest.py": "from sybil import Sybil\nfrom sybil.parsers.rest import DocTestParser\n"
            "pytest_collect_file = Sybil([DocTestParser()], patterns=['*.rst']).pytest()\n",
            "readme.rst": "Sums\n====\n\n>>> import calc\n>>> calc.add(2, 3)\n5\n",
        },
    ),
    Plugin(
        "syrupy",
        {
            "test_calc.py": "import calc\ndef test_add(snapshot): assert calc.add(2, 3) == snapshot\n",
            "__snapshots__/test_calc.ambr": "# serializer version: 1\n# name: test_add\n  5\n# ---\n",
        },
    ),
    Plugin(
        "testtools",
        "import testtools, calc\nfrom testtools.matchers import Equals\n"
        "class TestAdd(testtools.TestCase):\n    def test_add(self): self.assertThat(calc.add(2, 3), Equals(5))\n",
    ),
    Plugin(
        "time-machine",
        "import datetime, time_machine, calc\n@time_machine.travel('2020-02-05')\n"
        "def test_add(): assert calc.add(2, 3) == datetime.date.today().day\n",
    ),
    Plugin(
        "tornado",
        "from tornado.testing import AsyncTestCase, gen_test\nimport calc\n"
        "class TestAdd(AsyncTestCase):\n    @gen_test\n"
        "    async def test_add(self): self.assertEqual(calc.add(2, 3), 5)\n",
    ),
    Plugin(
        "twisted",
        "from twisted.internet import defer\nfrom twisted.trial import unittest\nimport calc\n"
        "class TestAdd(unittest.TestCase):\n    def test_add(self): self.assertEqual(calc.add(2, 3), 5)\n"
        "    def test_deferred(self):\n        waiting = defer.succeed(calc.add(1, 1))\n"
        "        return waiting.addCallback(self.assertEqual, 2)\n"
        "class TestPlain(unittest.SynchronousTestCase):\n"
        "    def test_add(self): self.assertEqual(calc.add(2, 2), 4)\n",
    ),
    Plugin("typeguard", PLAIN, options="--typeguard-packages=calc"),
    Plugin(
        "xdoctest",
        {
            "calc_doc.py": 'import calc\ndef total():\n    """\n    Example:\n        >>> import calc\n'
            '        >>> print(calc.add(2, 3))\n        5\n    """\n'
        },
        options="--xdoctest",
    ),
    Plugin(
        "zope.interface",
        "import unittest, calc\nfrom zope.interface import Interface, classImplements\n"
        "from zope.interface import implementer\nclass ITest(Interface): pass\n"
        "classImplements(unittest.TestCase, ITest)\nclassImplements(unittest.TestResult, ITest)\n"
        "@implementer(ITest)\nclass TestAdd(unittest.TestCase):\n"
        "    def test_add(self): self.assertEqual(calc.add(2, 3), 5)\n",
    ),
)
