"""The proxy that counts requests passes everything on, and counts each once."""

from __future__ import annotations

from contextlib import closing

from bench.load.counting_proxy import counting_proxy
from tests.serving import Client, ServerProcess


def test_every_request_is_passed_on_and_counted(server: ServerProcess) -> None:
    with counting_proxy(server.port) as proxy, closing(Client(proxy.port)) as one, closing(Client(proxy.port)) as other:
        assert one.append("counted", "x" * 200_000).status == 201
        for client in (one, other, one):
            assert client.get("/v0/health").status == 200
        assert proxy.counts == {"POST": 1, "GET": 3}
        assert proxy.total == 4
