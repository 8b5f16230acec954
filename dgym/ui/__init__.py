"""``dgym ui``: read-only web pages of results, served on the loopback interface or exported as files.

All files of an episode are untrusted, because programs, models and clusters have written them. Pages escape every value
and contain only the script of this package. The server does not open a file by a name from a request.
"""

from dgym.ui._server import export, export_single, serve

__all__ = ["export", "export_single", "serve"]
