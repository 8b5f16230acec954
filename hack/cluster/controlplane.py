"""Command lines of etcd and kube-apiserver, for the whole cluster and for integration tests alone."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from hack.cluster.pki import Authority, make_key

# Every write, once, as soon as it is answered: tests count what the operator asks of the API server. The bodies of
# status patches distinguish transitions from progress. Reads are logged of service accounts outside of kube-system, so
# that rights of dgym's accounts can be compared with what they ask for.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Request",
            "verbs": ["patch"],
            "resources": [{"group": "dgym.dev", "resources": ["episodes/status"]}],
        },
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


def etcd_command(binary: Path, directory: Path, client_port: int) -> list[str]:
    """One member that never waits for the disk: what it holds need not survive the machine."""
    peer = "http://127.0.0.1:0"
    client = f"http://127.0.0.1:{client_port}"
    return [
        str(binary),
        f"--data-dir={directory}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


@dataclass(frozen=True)
class ApiServerFiles:
    """What kube-apiserver reads at its start, and its audit log."""

    directory: Path

    @property
    def authority(self) -> Authority:
        """Signs the server's and every client's certificate."""
        return Authority(self.directory / "pki")

    @property
    def audit_log(self) -> Path:
        """One JSON object a line, one line a request."""
        return self.directory / "audit.log"

    @property
    def tokens(self) -> Path:
        """Bearer tokens and whom they stand for."""
        return self.directory / "tokens.csv"

    def write(self, token: str, addresses: list[str]) -> None:
        """Make keys, certificates, the administrator's token and the audit policy, where they are not there yet."""
        self.authority.create()
        names = [f"IP:{address}" for address in addresses]
        names += ["DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc"]
        self.authority.issue("apiserver", "/CN=kube-apiserver", names)
        if not (key := self.directory / "pki" / "service-accounts.key").exists():
            make_key(key)
        self.tokens.touch(mode=0o600)
        self.tokens.write_text(f'{token},admin,admin,"system:masters"\n')
        (self.directory / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))


def api_server_command(
    binary: Path, files: ApiServerFiles, *, etcd_port: int, address: str, port: int, services: str, extra: list[str]
) -> list[str]:
    """The API server with RBAC and the admission the design counts on."""
    pki = files.directory / "pki"
    return [
        str(binary),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        f"--bind-address={address}",
        f"--secure-port={port}",
        f"--service-cluster-ip-range={services}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--cert-dir={pki}",
        f"--token-auth-file={files.tokens}",
        f"--service-account-key-file={pki / 'service-accounts.key'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        # As in most clusters: what confines pods is admission.
        "--allow-privileged=true",
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
        f"--audit-policy-file={files.directory / 'audit-policy.json'}",
        f"--audit-log-path={files.audit_log}",
        "--audit-log-maxsize=1024",
        "--profiling=false",
        *extra,
    ]


def kubeconfig(url: str, ca_file: Path, user: dict[str, str]) -> str:
    """A kubeconfig with one context named dgym. JSON is YAML."""
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(ca_file.read_bytes()).decode()}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "dgym", "cluster": cluster}],
        "users": [{"name": "dgym", "user": user}],
        "contexts": [{"name": "dgym", "context": {"cluster": "dgym", "user": "dgym"}}],
        "current-context": "dgym",
    }
    return json.dumps(document, indent=2) + "\n"
