"""Pipelines: define them, read their status, and report it as a runner does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from topics.client.request import encode
from topics.client.values import Pipeline
from topics.embedded.host import Host
from topics.embedded.requests import decoded
from topics.engine.pipelines.verbs import PipelinePage, PipelineState
from topics.model.requests.pipelines import PipelineRequest, PipelineStatus, check_status_size

PAGE_SIZE: Final = 1_000
_definition = msgspec.json.Decoder(PipelineRequest)
_status = msgspec.json.Decoder(PipelineStatus)


class Pipelines:
    _host: Host

    def put_pipeline(self, name: str, definition: Mapping[str, Any] | msgspec.Struct) -> Pipeline:
        """Define or change a pipeline; a runner runs it."""
        params = decoded(_definition, encode(definition))
        change = self._host.commit(lambda: self._host.store.pipelines.put(name, params))
        pipeline = _pipeline(change.result)
        pipeline.created = change.created
        return pipeline

    def pipeline(self, name: str) -> Pipeline:
        return _pipeline(self._host.look(lambda: self._host.store.pipelines.look(name)))

    def pipelines(self, prefix: str = "", *, page_size: int = PAGE_SIZE) -> Iterator[Pipeline]:
        """Pipelines by name."""

        def page_after(cursor: str | None) -> PipelinePage:
            pipelines = self._host.store.pipelines
            return self._host.look(lambda: pipelines.list(prefix, cursor, page_size, wanted=lambda _: True))

        cursor: str | None = None
        while True:
            page = page_after(cursor)
            for state in page.pipelines:
                yield _pipeline(state)
            cursor = page.next_cursor
            if cursor is None:
                return

    def drop_pipeline(self, name: str) -> bool:
        """Remove a pipeline; its output stays. False: there was none."""
        return bool(self._host.commit(lambda: self._host.store.pipelines.drop(name)).result)

    def report_pipeline(self, name: str, status: Mapping[str, Any] | msgspec.Struct) -> Pipeline:
        """Report the status of a pipeline, as a runner does; the last report is shown."""
        body = encode(status)
        params = decoded(_status, body)

        def report() -> PipelineState:
            check_status_size(body)
            return self._host.store.pipelines.report(name, params)

        return _pipeline(self._host.look(report))


def _pipeline(state: PipelineState) -> Pipeline:
    return Pipeline(
        pipeline=state.name,
        definition=msgspec.to_builtins(state.definition),
        revision=state.revision,
        generation=state.generation,
        updated_ts=state.updated_ts,
        status=None if state.status is None else msgspec.to_builtins(state.status),
    )
