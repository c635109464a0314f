"""Certificates for tests: an authority of their own, and pairs that it has signed, good and bad ones."""

import datetime as dt
import ssl
from pathlib import Path

import trustme

from topics.http.tls.certificate import TlsFiles


class Authority:
    """Signs pairs of certificate and key, each in files of its own in this directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)
        self._made = 0

    def pair(self, *, days: int = 90, name: str = "localhost") -> TlsFiles:
        """Certificate and key for 127.0.0.1 and this name; with negative `days` it has expired."""
        until = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
        issued = self._ca.issue_cert(name, "127.0.0.1", not_before=until - dt.timedelta(days=365), not_after=until)
        self._made += 1
        certificate, key = (self._directory / f"{self._made}.{kind}.pem" for kind in ("cert", "key"))
        for blob in issued.cert_chain_pems:
            blob.write_to_path(certificate, append=True)
        issued.private_key_pem.write_to_path(key)
        return TlsFiles(str(certificate), str(key))

    def trusting(self, *protocols: str) -> ssl.SSLContext:
        """A client's context that trusts this authority alone, and offers these protocols by ALPN."""
        context = ssl.create_default_context(cafile=self.file)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context
