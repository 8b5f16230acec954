"""The components of the node: their command lines, the files that they read, and the order in which they start.

All configuration files but containerd's are JSON, which is valid YAML."""

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.cluster import images, machine
from hack.cluster.controlplane import ApiServerFiles, Client, api_server_command, etcd_command, kubeconfig
from hack.cluster.machine import ClusterError

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
    """Return containerd's configuration in version 2 of the format, which every containerd since 1.5 reads.

    A directory below ``registries`` configures the registry of the same name. It is read at each pull.
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
    """Return the CNI configuration: one bridge, and no translation of addresses of pods."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": machine.PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True}
    network_list = {"cniVersion": "0.4.0", "name": "dgym-cluster", "plugins": [{**bridge, "ipam": addresses}]}
    return json.dumps(network_list, indent=2)


def kubelet(directory: Path, socket: Path, pki: Path) -> str:
    """Return kubelet's configuration for small machines and both versions of control groups."""
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
        "clusterDNS": [machine.NODE],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": str(directory / "resolv.conf"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        # Images cannot be pulled again, so kubelet must not delete images or evict pods if the disk is nearly full.
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
    """Return kube-proxy's configuration for iptables.

    It does not change the size of the kernel's conntrack table, which the network namespace may not do. Unless
    ``bridge_filtered``, iptables does not see packets that cross the bridge. Then connections to services get the node
    as their source, so that replies pass the node and are translated back.
    """
    configuration = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": machine.PODS,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "100ms", "masqueradeAll": not bridge_filtered},
        "oomScoreAdj": 0,
    }
    return json.dumps(configuration, indent=2)


def scheduler(kubeconfig: Path) -> str:
    """Return the scheduler's configuration, without leader election and with a limit that allows bursts."""
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 200, "burst": 400},
        "leaderElection": {"leaderElect": False},
    }
    return json.dumps(configuration, indent=2)


STORAGE_CLASS = "local"
VOLUMES = 32
API_SERVER = f"https://{machine.NODE}:6443"
ETCD_PORT = 2379
POLICIES = "policies"
"""The component that enforces NetworkPolicies."""
CNI_PLUGINS = tuple(map(Path, ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni", "/usr/lib/cni/bin")))
USERS = {
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
    "kubelet": f"/O=system:nodes/CN=system:node:{NODE_NAME}",
}


def storage_class() -> dict[str, Any]:
    """Return the default storage class. Claims without a class get one of the prepared volumes."""
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
    """Return a volume in a directory of the node. A hostPath would not work, because kubelet ignores fsGroup for it."""
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


def find_cni_plugins() -> Path:
    """Return the directory in which the distribution installs the CNI plugins.

    Raises:
        ClusterError: They are not installed.
    """
    for directory in CNI_PLUGINS:
        if os.access(directory / "bridge", os.X_OK) and os.access(directory / "host-local", os.X_OK):
            return directory
    raise ClusterError(f"no CNI plugins in {', '.join(map(str, CNI_PLUGINS))} (package containernetworking-plugins)")


@dataclass(frozen=True)
class Files:
    """The files of a running cluster, below one directory."""

    state: Path

    @property
    def api_server(self) -> ApiServerFiles:
        """Keys, certificates, tokens and the audit log of the API server."""
        return ApiServerFiles(self.state)

    @property
    def pki(self) -> Path:
        """Directory of keys and certificates."""
        return self.state / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def containerd_socket(self) -> Path:
        """Socket of containerd. The machine can use it too: Unix sockets do not depend on the network namespace."""
        return self.state / "containerd.sock"

    @property
    def logs(self) -> Path:
        """Directory with a log for each program."""
        return self.state / "log"

    @property
    def ended(self) -> Path:
        """JSON file with the exit codes of components that have ended."""
        return self.state / "ended.json"

    @property
    def stopped(self) -> Path:
        """JSON file with the components that must be stopped. The first process reads it on SIGHUP."""
        return self.state / "stopped.json"

    @property
    def volumes(self) -> Path:
        """Directory that contains the directories of the persistent volumes."""
        return self.state / "volumes"

    @property
    def snapshotter(self) -> str:
        """Name of containerd's snapshotter."""
        return (self.state / "snapshotter").read_text()

    def client(self) -> Client:
        """Return a client with the rights of an administrator."""
        token = self.api_server.tokens.read_text().split(",")[0]
        return Client(API_SERVER, self.pki / "ca.crt", token)

    def write(self, snapshotter: str) -> None:
        """Write every file that the components read."""
        for directory in (self.logs, self.state / "lib", self.state / "cni", self.volumes):
            directory.mkdir(parents=True, exist_ok=True)
        token = secrets.token_hex(16)
        self.api_server.write(token, ["127.0.0.1", machine.NODE, machine.API_SERVICE])
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(kubeconfig(API_SERVER, self.pki / "ca.crt", {"token": token}))
        for name, subject in USERS.items():
            certificate, key = self.api_server.authority.issue(name, subject)
            user = {"client-certificate": str(certificate), "client-key": str(key)}
            (self.state / f"{name}.kubeconfig").write_text(kubeconfig(API_SERVER, self.pki / "ca.crt", user))
        self._write_node(snapshotter)

    def _write_node(self, snapshotter: str) -> None:
        (self.state / "snapshotter").write_text(snapshotter)
        (self.state / "resolv.conf").write_text(f"nameserver {machine.NODE}\n")
        (self.state / "cni" / "10-dgym.conflist").write_text(cni())
        (self.state / "containerd.toml").write_text(
            containerd(
                self.containerd_socket, snapshotter, find_cni_plugins(), self.state / "cni", self.state / "registries"
            )
        )
        configuration = kubelet(self.state, self.containerd_socket, self.pki)
        (self.state / "kubelet.json").write_text(configuration)
        bridge_filtered = Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
        (self.state / "kube-proxy.json").write_text(
            kube_proxy(self.state / "kube-proxy.kubeconfig", bridge_filtered=bridge_filtered)
        )
        (self.state / "kube-scheduler.json").write_text(scheduler(self.state / "kube-scheduler.kubeconfig"))
        for index in range(VOLUMES):
            directory = self.volumes / f"local-{index:02}"
            directory.mkdir(exist_ok=True)
            directory.chmod(0o777)


def first(files: Files, binaries: Path) -> dict[str, list[str]]:
    """Return the commands of components that do not need another component."""
    extra = [
        f"--advertise-address={machine.NODE}",
        f"--kubelet-client-certificate={files.pki / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={files.pki / 'apiserver-kubelet.key'}",
        "--kubelet-preferred-address-types=InternalIP",
    ]
    files.api_server.authority.issue("apiserver-kubelet", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    return {
        "containerd": ["containerd", "--config", str(files.state / "containerd.toml")],
        "etcd": etcd_command(binaries / "etcd", files.state / "etcd", ETCD_PORT),
        "kube-apiserver": api_server_command(
            binaries / "kube-apiserver", files.api_server, etcd_port=ETCD_PORT, address="0.0.0.0", port=6443,  # noqa: S104
            services=machine.SERVICES, extra=extra,
        ),
    }  # fmt: skip


def second(files: Files, binaries: Path) -> dict[str, list[str]]:
    """Return the commands of components that exit unless the API server is ready."""
    manager = files.state / "kube-controller-manager.kubeconfig"
    return {
        "kubelet": [
            str(binaries / "kubelet"),
            f"--config={files.state / 'kubelet.json'}",
            f"--kubeconfig={files.state / 'kubelet.kubeconfig'}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={machine.NODE}",
        ],
        "kube-controller-manager": [
            str(binaries / "kube-controller-manager"),
            f"--kubeconfig={manager}",
            f"--authentication-kubeconfig={manager}",
            f"--authorization-kubeconfig={manager}",
            f"--root-ca-file={files.pki / 'ca.crt'}",
            f"--service-account-private-key-file={files.pki / 'service-accounts.key'}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins",
        ],
        "kube-scheduler": [str(binaries / "kube-scheduler"), f"--config={files.state / 'kube-scheduler.json'}"],
        "kube-proxy": [
            str(binaries / "kube-proxy"),
            f"--config={files.state / 'kube-proxy.json'}",
            f"--hostname-override={NODE_NAME}",
        ],
    }


def create_objects(client: Client, files: Files) -> None:
    """Create the storage class and the volumes."""
    client.request("POST", "/apis/storage.k8s.io/v1/storageclasses", storage_class())
    for index in range(VOLUMES):
        client.request("POST", "/api/v1/persistentvolumes", volume(index, files.volumes, NODE_NAME))


def node_ready(client: Client) -> bool:
    """Return True if pods can start: the node is ready, and namespaces have their service account."""
    nodes = client.request("GET", "/api/v1/nodes")["items"]
    conditions = [condition for node in nodes for condition in node.get("status", {}).get("conditions", ())]
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    accounts = client.request("GET", "/api/v1/namespaces/default/serviceaccounts")["items"]
    return ready and bool(accounts)


def import_pause(files: Files, binaries: Path) -> None:
    """Import the pause image of pods into containerd, which cannot pull it."""
    images.wait_for_containerd(files.containerd_socket)
    archive = files.state / "pause.tar"
    images.pause_archive(archive, PAUSE_IMAGE, binaries / "pause")
    images.import_archive(archive, files.containerd_socket, files.snapshotter)
    archive.unlink()


def tails(files: Files, names: list[str], lines: int = 12) -> str:
    """Return the last lines of logs, for error messages."""
    parts = []
    for name in dict.fromkeys(names):
        log = files.logs / f"{name}.log"
        if log.exists() and log.stat().st_size:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
            parts.append(f"--- {log}\n{end}")
    return "\n".join(parts)
