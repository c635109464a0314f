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
request = urllib.request.Request(f"{scheme}://127.0.0.1:{os.environ['TOPICS_PORT']}/v0/ready")
# With TOPICS_PROBE_AUTH it needs a key: any of TOPICS_API_KEYS, given once more under the name that clients read.
if key := os.environ.get("TOPICS_API_KEY"):
    request.add_header("Authorization", f"Bearer {key}")
urllib.request.urlopen(request, timeout=4, context=CONTEXT)
