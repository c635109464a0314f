"""The health check of the container: exit code 0 if the server accepts requests, with TLS or without."""

import os
import ssl
import urllib.request

# It asks itself: a certificate that names another host, or that only clients trust, is fine.
CONTEXT = ssl.create_default_context()
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE
# With TOPICS_TLS_CLIENT_CA it needs a certificate as every client does.
if certificate := os.environ.get("TOPICS_CLIENT_CERT"):
    CONTEXT.load_cert_chain(certificate, os.environ.get("TOPICS_CLIENT_KEY"))

scheme = "https" if os.environ.get("TOPICS_TLS_CERT") else "http"
urllib.request.urlopen(f"{scheme}://127.0.0.1:{os.environ['TOPICS_PORT']}/v0/ready", timeout=4, context=CONTEXT)
