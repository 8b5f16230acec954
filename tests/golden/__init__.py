"""Golden files: expected output that users see, in ``texts``. Change a golden file only on purpose.

Three more golden files are kept where they are used. Separate commands write and check them:

- the CustomResourceDefinitions, ``charts/dgym/files/crds``: ``python hack/chart.py --check``
- the sidecar's calls, ``docs/openapi.json`` and the table in docs/wire.md: ``python hack/openapi.py --check``
- names, types, labels and help of all metrics, ``docs/metrics.md``: ``python -m hack.monitoring --check``
"""
