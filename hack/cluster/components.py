"""What runs on the one node, in the order it is started: command lines and the files they read."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from hack.cluster import images, network, node_config
from hack.cluster.client import Client
from hack.cluster.controlplane import ApiServerFiles, api_server_command, etcd_command, kubeconfig
from hack.cluster.machine import ClusterError
from hack.cluster.objects import VOLUMES, storage_class, volume

API_SERVER = f"https://{network.NODE}:6443"
ETCD_PORT = 2379
POLICIES = "policies"
"""The component that enforces NetworkPolicies."""
CNI_PLUGINS = tuple(map(Path, ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni", "/usr/lib/cni/bin")))
USERS = {
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
    "kubelet": f"/O=system:nodes/CN=system:node:{node_config.NODE_NAME}",
}


def find_cni_plugins() -> Path:
    """Where the distribution puts them."""
    for directory in CNI_PLUGINS:
        if os.access(directory / "bridge", os.X_OK) and os.access(directory / "host-local", os.X_OK):
            return directory
    raise ClusterError(f"no CNI plugins in {', '.join(map(str, CNI_PLUGINS))} (package containernetworking-plugins)")


@dataclass(frozen=True)
class Files:
    """Where everything of a running cluster is, below one directory."""

    state: Path

    @property
    def api_server(self) -> ApiServerFiles:
        """Keys, certificates, tokens, the audit log."""
        return ApiServerFiles(self.state)

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.state / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.state / "kubeconfig"

    @property
    def containerd_socket(self) -> Path:
        """Reached from the machine too: a socket with a path knows no network namespace."""
        return self.state / "containerd.sock"

    @property
    def logs(self) -> Path:
        """One log for each program."""
        return self.state / "log"

    @property
    def ended(self) -> Path:
        """The components that ended, and their exit codes."""
        return self.state / "ended.json"

    @property
    def stopped(self) -> Path:
        """The names of the components that are to be stopped; read by the first process on SIGHUP."""
        return self.state / "stopped.json"

    @property
    def volumes(self) -> Path:
        """The directories behind the persistent volumes."""
        return self.state / "volumes"

    @property
    def snapshotter(self) -> str:
        """How containerd stacks layers here."""
        return (self.state / "snapshotter").read_text()

    def client(self) -> Client:
        """Asks as administrator."""
        token = self.api_server.tokens.read_text().split(",")[0]
        return Client(API_SERVER, self.pki / "ca.crt", token)

    def write(self, snapshotter: str) -> None:
        """Make every file that the components read."""
        for directory in (self.logs, self.state / "lib", self.state / "cni", self.volumes):
            directory.mkdir(parents=True, exist_ok=True)
        token = secrets.token_hex(16)
        self.api_server.write(token, ["127.0.0.1", network.NODE, network.API_SERVICE])
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(kubeconfig(API_SERVER, self.pki / "ca.crt", {"token": token}))
        for name, subject in USERS.items():
            certificate, key = self.api_server.authority.issue(name, subject)
            user = {"client-certificate": str(certificate), "client-key": str(key)}
            (self.state / f"{name}.kubeconfig").write_text(kubeconfig(API_SERVER, self.pki / "ca.crt", user))
        self._write_node(snapshotter)

    def _write_node(self, snapshotter: str) -> None:
        (self.state / "snapshotter").write_text(snapshotter)
        (self.state / "resolv.conf").write_text(f"nameserver {network.NODE}\n")
        (self.state / "cni" / "10-dgym.conflist").write_text(node_config.cni())
        (self.state / "containerd.toml").write_text(
            node_config.containerd(
                self.containerd_socket, snapshotter, find_cni_plugins(), self.state / "cni", self.state / "registries"
            )
        )
        configuration = node_config.kubelet(self.state, self.containerd_socket, self.pki)
        (self.state / "kubelet.json").write_text(configuration)
        bridge_filtered = Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
        (self.state / "kube-proxy.json").write_text(
            node_config.kube_proxy(self.state / "kube-proxy.kubeconfig", bridge_filtered=bridge_filtered)
        )
        (self.state / "kube-scheduler.json").write_text(node_config.scheduler(self.state / "kube-scheduler.kubeconfig"))
        for index in range(VOLUMES):
            directory = self.volumes / f"local-{index:02}"
            directory.mkdir(exist_ok=True)
            directory.chmod(0o777)


def first(files: Files, binaries: Path) -> dict[str, list[str]]:
    """What waits for nothing."""
    extra = [
        f"--advertise-address={network.NODE}",
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
            services=network.SERVICES, extra=extra,
        ),
    }  # fmt: skip


def second(files: Files, binaries: Path) -> dict[str, list[str]]:
    """What exits if the API server does not serve requests yet."""
    manager = files.state / "kube-controller-manager.kubeconfig"
    return {
        "kubelet": [
            str(binaries / "kubelet"),
            f"--config={files.state / 'kubelet.json'}",
            f"--kubeconfig={files.state / 'kubelet.kubeconfig'}",
            f"--hostname-override={node_config.NODE_NAME}",
            f"--node-ip={network.NODE}",
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
            f"--hostname-override={node_config.NODE_NAME}",
        ],
    }


def create_objects(client: Client, files: Files) -> None:
    """Give the cluster its storage class and volumes."""
    client.request("POST", "/apis/storage.k8s.io/v1/storageclasses", storage_class())
    for index in range(VOLUMES):
        client.request("POST", "/api/v1/persistentvolumes", volume(index, files.volumes, node_config.NODE_NAME))


def node_ready(client: Client) -> bool:
    """Whether pods can start: the node is ready and namespaces get their service account."""
    nodes = client.request("GET", "/api/v1/nodes")["items"]
    conditions = [condition for node in nodes for condition in node.get("status", {}).get("conditions", ())]
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    accounts = client.request("GET", "/api/v1/namespaces/default/serviceaccounts")["items"]
    return ready and bool(accounts)


def import_pause(files: Files, binaries: Path) -> None:
    """Give containerd the image that every pod starts with; it could not pull one."""
    images.wait_for_containerd(files.containerd_socket)
    archive = files.state / "pause.tar"
    images.pause_archive(archive, node_config.PAUSE_IMAGE, binaries / "pause")
    images.import_archive(archive, files.containerd_socket, files.snapshotter)
    archive.unlink()


def tails(files: Files, names: list[str], lines: int = 12) -> str:
    """The ends of logs, for whoever reads why it failed."""
    parts = []
    for name in dict.fromkeys(names):
        log = files.logs / f"{name}.log"
        if log.exists() and log.stat().st_size:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
            parts.append(f"--- {log}\n{end}")
    return "\n".join(parts)
