"""Report from a pytest that a shell line starts.

``sitecustomize`` of this directory, which is on ``PYTHONPATH``, names this module in ``PYTEST_ADDOPTS``.

PYTEST_DONT_REWRITE: pytest must not touch this module.
"""

import importlib.util
import os


def _wrapper():
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "run_wrapper.py")
    spec = importlib.util.spec_from_file_location("dgym_run_wrapper", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    wrapper = _wrapper()
    descriptors = _take_variables(wrapper)
    if None in descriptors:
        return
    try:
        orders = wrapper.read_orders(int(descriptors[0]))
        os.close(int(descriptors[0]))
        report = wrapper.hide(int(descriptors[1]))
    except OSError:
        return
    write = wrapper.open_writer(report, orders.pop("token"))
    reporter = wrapper.load("run_pytest").make_reporter(wrapper.load, orders, write)
    reporter.take_snapshot(early_config.pluginmanager)
    early_config.pluginmanager.register(reporter, "dgym-" + os.urandom(6).hex())
