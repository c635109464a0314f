"""Pipelines: define them, read their status, and report it as a runner does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from topics.client.aio.wire.transport import AsyncTransport
from topics.client.request import QueryValue, Request, encode, with_query
from topics.client.values import Pipeline, PipelinePage, Removed

PAGE_SIZE: Final = 1_000
_pipeline = msgspec.json.Decoder(Pipeline)
_page = msgspec.json.Decoder(PipelinePage)
_removed = msgspec.json.Decoder(Removed)


class AsyncPipelines:
    _transport: AsyncTransport

    async def put_pipeline(
        self,
        name: str,
        definition: Mapping[str, Any] | msgspec.Struct,
        *,
        keep_checkpoint: bool = False,
        dry_run: bool = False,
    ) -> Pipeline:
        """Define or change a pipeline; a runner runs it. `effect` says whether it continues from its checkpoint.

        `keep_checkpoint` lets it continue after a change that would start it again; `dry_run` only reports the effect.
        """
        query: dict[str, QueryValue] = {"keep_checkpoint": keep_checkpoint or None, "dry_run": dry_run or None}
        path = with_query(_path(name), query)
        request = Request(method="PUT", path=path, decoder=_pipeline, body=encode(definition), safe=True)
        return await self._transport.call(request)

    async def pipeline(self, name: str) -> Pipeline:
        return await self._transport.call(Request(method="GET", path=_path(name), decoder=_pipeline, safe=True))

    async def pipelines(self, prefix: str = "", *, page_size: int = PAGE_SIZE) -> AsyncIterator[Pipeline]:
        """Pipelines by name; pages are fetched as needed."""
        query: dict[str, QueryValue] = {"prefix": prefix or None, "page_size": page_size}
        async for page in self._transport.pages("/v0/pipelines", query, _page):
            for pipeline in page.pipelines:
                yield pipeline

    async def restart_pipeline(self, name: str, *, anew: bool = False) -> Pipeline:
        """Let its runner stop it and start it again; `anew`: without its checkpoint, so that its output is repeated."""
        body = encode({"start": "sources" if anew else "checkpoint"})
        request = Request(method="POST", path=f"{_path(name)}/restart", decoder=_pipeline, body=body, safe=False)
        return await self._transport.call(request)

    async def drop_pipeline(self, name: str) -> bool:
        """Remove a pipeline; its output stays. False: there was none."""
        request = Request(method="DELETE", path=_path(name), decoder=_removed, safe=True)
        return (await self._transport.call(request)).deleted

    async def report_pipeline(self, name: str, status: Mapping[str, Any] | msgspec.Struct) -> Pipeline:
        """Report the status of a pipeline, as a runner does; the last report is shown."""
        path = f"{_path(name)}/status"
        return await self._transport.call(
            Request(method="POST", path=path, decoder=_pipeline, body=encode(status), safe=True)
        )


def _path(name: str) -> str:
    return f"/v0/pipelines/{quote(name, safe=':')}"
