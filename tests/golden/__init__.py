"""Golden files: output that users see, kept in ``texts``. A change of a golden file is a decision.

Three more are kept where they are used, each written and checked by a command of its own:

- the CustomResourceDefinitions, ``charts/dgym/files/crds``: ``python hack/chart.py --check``
- the sidecar's calls, ``docs/openapi.json``: ``python hack/openapi.py --check``
- names, types, labels and help of all metrics, ``docs/metrics.md``: ``python -m hack.monitoring --check``
"""
