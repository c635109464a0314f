"""The client: all parts of the API in one class."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from topics.client.aio.admin import AsyncAdmin
from topics.client.aio.groups import AsyncGroups
from topics.client.aio.job_handle import AsyncJobHandle
from topics.client.aio.pipelines import AsyncPipelines
from topics.client.aio.queues import AsyncQueues
from topics.client.aio.records import AsyncRecords
from topics.client.aio.routers import AsyncRouters
from topics.client.aio.schedules import AsyncSchedules
from topics.client.aio.topics import AsyncTopics
from topics.client.aio.transactions import AsyncTransactions
from topics.client.aio.webhooks import AsyncWebhooks
from topics.client.aio.wire.streaming import AsyncStreaming
from topics.client.aio.wire.transport import AsyncTransport
from topics.client.request import TIMEOUT_S_DEFAULT, Options, Urls, traces
from topics.client.retrying import RETRIES_MAX, RETRY_S_MAX
from topics.client.tls.files import TlsFiles
from topics.client.tokens import Tokens
from topics.client.values import JobGroup

if TYPE_CHECKING:
    import httpx2


class AsyncClient(
    AsyncTopics,
    AsyncRecords,
    AsyncStreaming,
    AsyncQueues,
    AsyncRouters,
    AsyncGroups,
    AsyncTransactions,
    AsyncPipelines,
    AsyncSchedules,
    AsyncWebhooks,
    AsyncAdmin,
):
    """A client of one server, over HTTP, or of several of which one is primary.

    `url` defaults to TOPICS_URL, or to the server on this machine at TOPICS_PORT (4000). Several, as a list or
    separated by commas, are the primary and its standbys, in any order: all requests go to the primary, whichever it
    is at the time. `key` defaults to TOPICS_API_KEY, and is sent to no other server than these. `node` is the origin
    of records and claims unless a call names another. `user` and `password`, or a `token`, are for the consumer groups.
    A request fails after `timeout_s` without a reply, and is retried where that is safe: at most `retries_max` times,
    and not after `retry_s_max` in total. Keep that below the idempotency window of the topics (120 s unless
    configured). For https, `ca_file` (TOPICS_CA_FILE) names the authorities to trust
    instead of the system's, and `client_cert` (TOPICS_CLIENT_CERT, TOPICS_CLIENT_KEY) a file, or a certificate and its
    key, for servers that ask for one. `tracing` (TOPICS_TRACING) makes spans of OpenTelemetry.
    `transport` replaces the network; it does not support WebSockets.
    """

    def __init__(
        self,
        url: Urls | None = None,
        key: str | None = None,
        *,
        node: str | None = None,
        timeout_s: float = TIMEOUT_S_DEFAULT,
        retries_max: int = RETRIES_MAX,
        retry_s_max: float = RETRY_S_MAX,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        ca_file: str | None = None,
        client_cert: str | tuple[str, str] | None = None,
        tracing: bool | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        options = Options.resolve(
            url,
            key,
            node=node,
            timeout_s=timeout_s,
            retries_max=retries_max,
            retry_s_max=retry_s_max,
            tls=TlsFiles.resolve(ca_file, client_cert),
            tracing=traces(tracing),
        )
        self._transport = AsyncTransport(options, Tokens(token, user, password), transport)

    @property
    def url(self) -> str:
        """The servers that were given, separated by commas."""
        return self._transport.options.url

    @property
    def traces(self) -> bool:
        """Whether its requests are traced."""
        return self._transport.tracer is not None

    async def enqueue(
        self,
        queue: str,
        data: Any,
        *,
        tag: str | None = None,
        meta: Mapping[str, Any] | None = None,
        delay_ms: int = 0,
        unique_key: str | None = None,
        job_priority: int = 0,
        group: JobGroup | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJobHandle:
        """Append a job; with the handle one can ask how it stands, and wait for its result.

        With a `unique_key` that is pending, it is the handle of the existing job.
        """
        appended = await self.append(
            queue,
            data,
            tag=tag,
            meta=meta,
            delay_ms=delay_ms,
            unique_key=unique_key,
            job_priority=job_priority,
            group=group,
            idempotency_key=idempotency_key,
        )
        return self.job_handle(queue, appended.seqs[0])

    def job_handle(self, queue: str, seq: int) -> AsyncJobHandle:
        """The handle of a job that was appended before."""
        return AsyncJobHandle(self, queue, seq)

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
