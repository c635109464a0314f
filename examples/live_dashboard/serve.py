"""A live dashboard in the browser: `python examples/live_dashboard/serve.py`, then open http://127.0.0.1:8001/

The server is TOPICS_URL, with the key TOPICS_API_KEY; it must allow the page: TOPICS_CORS_ORIGINS=http://127.0.0.1:8001.
The page reads the topic itself, by a token that opens nothing else: the key stays here.
"""

import http.client
import json
import os
import random
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from topics.client import Client

PORT = int(os.environ.get("PORT", "8001"))
URL = os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")
KEY = os.environ["TOPICS_API_KEY"]
TOPIC = "sensors"
PAGE = Path(__file__).parent / "index.html"


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/":
            self.reply(200, "text/html; charset=utf-8", PAGE.read_bytes())
        elif self.path == "/stream-token":
            # Here a real backend first asks who the user is.
            self.reply(200, "application/json", stream_token())
        else:
            self.reply(404, "text/plain", b"not found\n")

    def reply(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def stream_token() -> bytes:
    """What the page needs to read the topic for ten minutes."""
    where = urllib.parse.urlsplit(URL)
    connection = http.client.HTTPConnection(where.netloc)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    connection.request("POST", "/v0/stream-tokens", json.dumps({"topics": [TOPIC], "ttl_ms": 600_000}), headers)
    token = json.loads(connection.getresponse().read())["token"]
    connection.close()
    return json.dumps({"url": URL, "topic": TOPIC, "token": token}).encode()


def measure(client: Client) -> None:
    """What sensors would send: ten readings a second, of which the topic keeps the last thousand."""
    client.create(TOPIC, cap_records=1_000)
    degrees = {"hall": 19.0, "office": 21.5, "roof": 7.0}
    with client.producer(TOPIC) as producer:
        while True:
            for name, usual in degrees.items():
                producer.append({"sensor": name, "degrees": round(random.gauss(usual, 0.5), 1)}, tag=name)
            time.sleep(0.3)


def main() -> None:
    with Client(URL, KEY) as client:
        threading.Thread(target=measure, args=[client], daemon=True).start()
        server = ThreadingHTTPServer(("127.0.0.1", PORT), Pages)
        print(f"open http://127.0.0.1:{PORT}/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
