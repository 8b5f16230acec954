"""Command lines of etcd and kube-apiserver, for a whole cluster and for integration tests that need only these two.

``Client`` is a blocking client of the API server for the start of a cluster."""

import base64
import json
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DAYS = "3650"
# Every write is logged once, because tests count the requests of the operator. The bodies of status patches are logged
# to distinguish transitions from progress. Reads are logged for service accounts outside of kube-system, so that tests
# can compare the rights of dgym's accounts with their requests.
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


def _openssl(*arguments: str | Path) -> None:
    result = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    if result.returncode:
        raise RuntimeError(f"openssl {arguments[0]} failed: {result.stderr.strip()}")


def make_key(path: Path) -> Path:
    """Create a private key that only its owner can read. It is elliptic, because an RSA key would take much longer."""
    path.touch(mode=0o600)
    # genpkey is not used, because the API server cannot read its format as a key for service accounts.
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
    return path


class Authority:
    """A certificate authority. It writes certificates and keys to one directory as NAME.crt and NAME.key."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = directory / "ca.crt"

    def create(self) -> None:
        """Create the authority unless the directory has one."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.certificate.exists():
            return
        key = make_key(self.directory / "ca.key")
        # Strict verification, the default since Python 3.13, requires the key usage.
        usage = "keyUsage=critical,keyCertSign,cRLSign"
        _openssl("req", "-x509", "-new", "-key", key, "-days", DAYS, "-subj", "/CN=dgym-cluster",
                 "-addext", usage, "-out", self.certificate)  # fmt: skip

    def issue(self, name: str, subject: str, alternative_names: Sequence[str] = ()) -> tuple[Path, Path]:
        """Issue a certificate for a subject such as `/O=system:masters/CN=admin`. Return its path and its key."""
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        if certificate.exists():
            return certificate, key
        request, extensions = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
        make_key(key)
        _openssl("req", "-new", "-key", key, "-subj", subject, "-out", request)
        extensions.write_text(_extensions(alternative_names))
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.directory / "ca.key",
                 "-CAcreateserial", "-days", DAYS, "-extfile", extensions, "-out", certificate)  # fmt: skip
        return certificate, key


def _extensions(alternative_names: Sequence[str]) -> str:
    lines = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        "extendedKeyUsage=serverAuth,clientAuth",
        "subjectKeyIdentifier=hash",
        "authorityKeyIdentifier=keyid",
    ]
    if alternative_names:
        lines.append("subjectAltName=" + ",".join(alternative_names))
    return "\n".join(lines) + "\n"


def etcd_command(binary: Path, directory: Path, client_port: int) -> list[str]:
    """Return the command of a single etcd member. It does not fsync, because the data need not survive a crash."""
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
    """The files that kube-apiserver reads at its start, and its audit log."""

    directory: Path

    @property
    def authority(self) -> Authority:
        """The authority that issues the certificates of the server and of all clients."""
        return Authority(self.directory / "pki")

    @property
    def audit_log(self) -> Path:
        """Path of the audit log. Each line is a JSON object for one request."""
        return self.directory / "audit.log"

    @property
    def tokens(self) -> Path:
        """Path of the list of bearer tokens and their users."""
        return self.directory / "tokens.csv"

    def write(self, token: str, addresses: list[str]) -> None:
        """Write missing keys and certificates, the token of the administrator, and the audit policy."""
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
    """Return the command of an API server with RBAC and the admission plugins that dgym relies on."""
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
        # Allowed as in most clusters. Admission restricts pods.
        "--allow-privileged=true",
        "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
        f"--audit-policy-file={files.directory / 'audit-policy.json'}",
        f"--audit-log-path={files.audit_log}",
        "--audit-log-maxsize=1024",
        "--profiling=false",
        *extra,
    ]


def kubeconfig(url: str, ca_file: Path, user: dict[str, str]) -> str:
    """Return a kubeconfig with one context named dgym, as JSON, which is valid YAML."""
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


@dataclass(frozen=True)
class Client:
    """A client that authenticates with a bearer token. A refused request raises ``urllib.error.HTTPError``."""

    url: str
    ca_file: Path
    token: str

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Any:
        """Send a request, and return the JSON object or the text of the response."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers(content_type), method=method)  # noqa: S310
        with self._opener().open(request, timeout=30) as response:
            text = response.read()
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def _headers(self, content_type: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Content-Type": content_type, "Accept": "application/json"}

    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self.ca_file)
        # The server is on this machine, so proxies of the environment are ignored.
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers)

    def watch(self, path: str) -> Iterator[Any]:
        """Yield the events of a watch until the server ends it."""
        request = urllib.request.Request(self.url + path, headers=self._headers("application/json"))  # noqa: S310
        with self._opener().open(request, timeout=300) as response:
            for line in response:
                yield json.loads(line)

    def ready(self) -> bool:
        """Return True if the server is ready and the namespace ``default`` exists."""
        try:
            self.request("GET", "/readyz")
            self.request("GET", "/api/v1/namespaces/default")
        except OSError:
            return False
        return True
