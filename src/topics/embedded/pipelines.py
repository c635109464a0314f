"""Pipelines: define them, read their status, and report it as a runner does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from topics.client.request import encode
from topics.client.values import Pipeline, PipelineInput
from topics.embedded.host import Host
from topics.embedded.requests import decoded
from topics.engine.pipelines.backlog import Backlog
from topics.engine.pipelines.verbs import PipelinePage, PipelineState
from topics.model.errors import PipelineNotFound
from topics.model.requests.pipelines import PipelineRequest, PipelineStatus, check_status_size

PAGE_SIZE: Final = 1_000
_definition = msgspec.json.Decoder(PipelineRequest)
_status = msgspec.json.Decoder(PipelineStatus)


class Pipelines:
    _host: Host

    def put_pipeline(
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
        params = decoded(_definition, encode(definition))
        verbs = self._host.store.pipelines
        plan = self._host.look(lambda: verbs.plan(name, params, keep_checkpoint=keep_checkpoint))
        if dry_run:
            pipeline = self._planned(name, params)
        else:
            change = self._host.commit(lambda: verbs.put(name, params, keep_checkpoint=keep_checkpoint))
            pipeline = self._shown(change.result)
        pipeline.created, pipeline.effect, pipeline.changed = plan.effect == "created", plan.effect, plan.changed
        return pipeline

    def _planned(self, name: str, params: PipelineRequest) -> Pipeline:
        try:
            state = self._host.look(lambda: self._host.store.pipelines.look(name))
        except PipelineNotFound:
            state = PipelineState(name, params, 0, 0, 0)
        return self._shown(state._replace(definition=params))

    def pipeline(self, name: str) -> Pipeline:
        return self._shown(self._host.look(lambda: self._host.store.pipelines.look(name)))

    def pipelines(self, prefix: str = "", *, page_size: int = PAGE_SIZE) -> Iterator[Pipeline]:
        """Pipelines by name."""

        def page_after(cursor: str | None) -> PipelinePage:
            pipelines = self._host.store.pipelines
            return self._host.look(lambda: pipelines.list(prefix, cursor, page_size, wanted=lambda _: True))

        cursor: str | None = None
        while True:
            page = page_after(cursor)
            for state in page.pipelines:
                yield self._shown(state, inputs=False)
            cursor = page.next_cursor
            if cursor is None:
                return

    def restart_pipeline(self, name: str, *, anew: bool = False) -> Pipeline:
        """Let its runner stop it and start it again; `anew`: without its checkpoint, so that its output is repeated."""
        change = self._host.commit(lambda: self._host.store.pipelines.restart(name, anew=anew))
        return self._shown(change.result)

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

        return self._shown(self._host.look(report))

    def _shown(self, state: PipelineState, *, inputs: bool = True) -> Pipeline:
        return _pipeline(state, self._host.look(lambda: self._host.store.pipelines.backlog(state)), inputs=inputs)


def _pipeline(state: PipelineState, backlog: Backlog | None, *, inputs: bool) -> Pipeline:
    status = state.status
    if status is not None and backlog is not None:
        status = msgspec.structs.replace(status, lag=backlog.lag, positions=None)
    pipeline = Pipeline(
        pipeline=state.name,
        definition=msgspec.to_builtins(state.definition),
        revision=state.revision,
        generation=state.generation,
        updated_ts=state.updated_ts,
        status=None if status is None else msgspec.to_builtins(status),
        lag=None if status is None else status.lag,
    )
    if backlog is not None:
        pipeline.oldest_unread_ts = backlog.oldest_unread_ts
        longest = sorted(backlog.inputs, key=lambda each: each.lag, reverse=True) if inputs else []
        pipeline.inputs = [PipelineInput(*each) for each in longest]
    return pipeline
