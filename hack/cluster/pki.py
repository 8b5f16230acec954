"""Keys and certificates by openssl: a certificate authority of the cluster's own and what it signs."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

DAYS = "3650"


def _openssl(*arguments: str | Path) -> None:
    result = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    if result.returncode:
        raise RuntimeError(f"openssl {arguments[0]} failed: {result.stderr.strip()}")


def make_key(path: Path) -> Path:
    """A private key that only its owner can read. Elliptic: an RSA key takes as long as the whole control plane."""
    path.touch(mode=0o600)
    # Not genpkey: the API server does not read its format as a key of service accounts.
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
    return path


class Authority:
    """Signs certificates into one directory as NAME.crt and NAME.key."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = directory / "ca.crt"

    def create(self) -> None:
        """Make the authority, unless the directory has one."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.certificate.exists():
            return
        key = make_key(self.directory / "ca.key")
        # Strict verifiers (Python 3.13 and later) want the usage of the key said.
        usage = "keyUsage=critical,keyCertSign,cRLSign"
        _openssl("req", "-x509", "-new", "-key", key, "-days", DAYS, "-subj", "/CN=dgym-cluster",
                 "-addext", usage, "-out", self.certificate)  # fmt: skip

    def issue(self, name: str, subject: str, alternative_names: Sequence[str] = ()) -> tuple[Path, Path]:
        """Sign a certificate for a subject such as `/O=system:masters/CN=admin`; return it and its key."""
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
