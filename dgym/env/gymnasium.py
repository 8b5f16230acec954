"""The former place of ``dgym.gymnasium``, for programs and ids that name it."""

import sys
from importlib import import_module

sys.modules[__name__] = import_module("dgym.gymnasium")
