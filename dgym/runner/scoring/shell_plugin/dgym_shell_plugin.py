"""Report from a pytest that a shell line starts.

``sitecustomize`` of this directory, which is on ``PYTHONPATH``, names this module in ``PYTEST_ADDOPTS``.

PYTEST_DONT_REWRITE: pytest must not touch this module.
"""

import os
import sys

_PACKAGE = "dgym_runner"


def _take_variables(wrapper):
    """The descriptors, taken out of the environment: a pytest started by a test must not report."""
    orders = os.environ.pop(wrapper.ORDERS_VARIABLE, None)
    report = os.environ.pop(wrapper.REPORT_VARIABLE, None)
    words = os.environ.get("PYTEST_ADDOPTS", "").replace("-p " + wrapper.PLUGIN, "").strip()
    if words:
        os.environ["PYTEST_ADDOPTS"] = words
    else:
        os.environ.pop("PYTEST_ADDOPTS", None)
    return orders, report


def pytest_load_initial_conftests(early_config):
    if _PACKAGE not in sys.modules:
        sys.modules[_PACKAGE] = type(sys)(_PACKAGE)
        here = os.path.dirname(os.path.abspath(__file__))
        sys.modules[_PACKAGE].__path__ = [os.path.dirname(os.path.dirname(here))]
    from dgym_runner.descriptors import move_high
    from dgym_runner.scoring import start, wrapper

    descriptors = _take_variables(wrapper)
    if None in descriptors:
        return
    try:
        orders = wrapper.read_orders(int(descriptors[0]))
        os.close(int(descriptors[0]))
        report = move_high(int(descriptors[1]))
    except OSError:
        return
    reporter = start.make_reporter(orders, wrapper.open_writer(report, orders.pop("token")))
    reporter.take_snapshot(early_config.pluginmanager)
    early_config.pluginmanager.register(reporter, "dgym-" + os.urandom(6).hex())
