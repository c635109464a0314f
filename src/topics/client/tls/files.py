"""TLS of a client: which certificates it trusts besides the system's, and the one that it shows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from topics.client.errors import InvalidRequest

if TYPE_CHECKING:
    import ssl

CA_VARIABLE = "TOPICS_CA_FILE"
CERT_VARIABLE = "TOPICS_CLIENT_CERT"
KEY_VARIABLE = "TOPICS_CLIENT_KEY"


class TlsFiles(NamedTuple):
    """Files in PEM: the authorities to trust instead of the system's, and a certificate with its key."""

    ca_file: str | None
    cert: str | None
    key: str | None

    @classmethod
    def resolve(cls, ca_file: str | None, client_cert: str | tuple[str, str] | None) -> TlsFiles:
        """What is not given comes from the environment."""
        ca_file = ca_file or os.environ.get(CA_VARIABLE) or None
        if isinstance(client_cert, tuple):
            return cls(ca_file, *client_cert)
        cert = client_cert or os.environ.get(CERT_VARIABLE) or None
        return cls(ca_file, cert, None if client_cert else os.environ.get(KEY_VARIABLE) or None)

    def context(self) -> ssl.SSLContext | None:
        """None: the usual context, which trusts the authorities of the system."""
        if self.ca_file is None and self.cert is None:
            return None
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("ca_file", self.ca_file, error) from None
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                raise _unusable("client_cert", self.cert, error) from None
        return context


NO_FILES: Final = TlsFiles(None, None, None)


def _unusable(field: str, path: Any, error: Exception) -> InvalidRequest:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return InvalidRequest(f"{field} {path} cannot be used: {reason}", field=field)
