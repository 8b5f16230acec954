"""Objects a cluster has from its start: volumes, since nothing here provisions them."""

from pathlib import Path
from typing import Any

STORAGE_CLASS = "local"
VOLUMES = 32


def storage_class() -> dict[str, Any]:
    """The default class: claims without a class take one of the volumes made beforehand."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "Immediate",
    }


def volume(index: int, directory: Path, node: str) -> dict[str, Any]:
    """A directory of the node. Not a hostPath: kubelet gives only `local` volumes to the pod's fsGroup."""
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"local-{index:02}"},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "local": {"path": str(directory / f"local-{index:02}")},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    }
