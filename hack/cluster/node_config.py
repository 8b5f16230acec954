"""Configuration of what runs on the node. All of it is JSON, which is YAML, but containerd's."""

import json
from pathlib import Path
from typing import Any

from hack.cluster import network

NODE_NAME = "dgym"
CGROUP = "dgym-cluster"
PAUSE_IMAGE = "localhost/dgym-cluster/pause:1"
EVICTION_SIGNALS = ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available")
CLUSTER_DOMAIN = "cluster.local"

CONTAINERD = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0

[grpc]
  address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{registries}"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{configuration}"
"""


def containerd(socket: Path, snapshotter: str, cni_plugins: Path, cni_configuration: Path, registries: Path) -> str:
    """Version 2 of the format: every containerd since 1.5 reads it.

    A directory below ``registries`` configures the registry of its name; it is read at each pull.
    """
    return CONTAINERD.format(
        socket=socket,
        pause=PAUSE_IMAGE,
        snapshotter=snapshotter,
        plugins=cni_plugins,
        configuration=cni_configuration,
        registries=registries,
    )


def cni() -> str:
    """One bridge, addresses from a file, no translation: pods are reached by their own addresses."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": network.PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True}
    network_list = {"cniVersion": "0.4.0", "name": "dgym-cluster", "plugins": [{**bridge, "ipam": addresses}]}
    return json.dumps(network_list, indent=2)


def kubelet(directory: Path, socket: Path, pki: Path) -> str:
    """A node that takes pods on small machines, whatever their version of control groups."""
    configuration: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{socket}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [network.NODE],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": str(directory / "resolv.conf"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        # Images come by hand and cannot be pulled again: neither they nor pods go when the disk of a laptop is full.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": dict.fromkeys(EVICTION_SIGNALS, "0%"),
        "serializeImagePulls": False,
        "maxPods": 200,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 0,
    }
    return json.dumps(configuration, indent=2)


def kube_proxy(kubeconfig: Path, *, bridge_filtered: bool) -> str:
    """Service addresses by iptables. The kernel's table of connections is not this namespace's to size.

    Where the kernel keeps what crosses a bridge from iptables, pods see the node as the source of what comes through a
    service: its answers must pass the node to be translated back.
    """
    configuration = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": network.PODS,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "100ms", "masqueradeAll": not bridge_filtered},
        "oomScoreAdj": 0,
    }
    return json.dumps(configuration, indent=2)


def scheduler(kubeconfig: Path) -> str:
    """The scheduler alone, with room for bursts."""
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 200, "burst": 400},
        "leaderElection": {"leaderElect": False},
    }
    return json.dumps(configuration, indent=2)
