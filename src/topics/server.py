"""The server process: open the store while replying "not ready", serve, and on SIGTERM drain, checkpoint and exit.

listen ─▶ replay in slices (503, progress) ─▶ serve ─▶ SIGTERM ─▶ end waiting calls ─▶ drain ─▶ last checkpoint ─▶ 0
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple, cast

import uvloop

from topics.api.admission import SAMPLE_MS, Pressure
from topics.api.app import Api
from topics.api.auth import Authenticator, KeyAuthenticator, authenticator_of
from topics.api.call import Call
from topics.api.console.base_path import BasePath
from topics.api.console.history import History
from topics.api.console.overview import Overview
from topics.api.console.pages import ConsolePages
from topics.api.console.readers import Readers
from topics.api.console.recent_log import RecentLog
from topics.api.console.server_state import ServerState
from topics.api.cors import Cors
from topics.api.errors import render_error
from topics.api.groups.consumers import Groups
from topics.api.groups.login import Login
from topics.api.groups.login_limits import TrustedProxies
from topics.api.groups.tokens import Tokens
from topics.api.lifecycle import VERSION, Lifecycle
from topics.api.live.delivery import Delivery
from topics.api.live.stream_tokens import StreamTokens
from topics.api.live.topic_stream import route_before_ready
from topics.api.live.work_stream import Work
from topics.api.logs.lines import BufferedLines, start_logging
from topics.api.logs.log_stream import LogStream
from topics.api.logs.requests import ObservedApi, RequestLog, on_reply
from topics.api.logs.spans import RequestSpans, start_exporting
from topics.api.logs.start_lines import counted, say_access, say_ready, say_role, say_tls
from topics.api.metrics import Metrics, Usage
from topics.api.openapi import openapi_routes
from topics.api.promotion import Promotion
from topics.api.routes import Route, RouteTable
from topics.api.sqs.service import sqs_routes
from topics.api.v0.backup import Backups
from topics.api.v0.compaction import Compaction
from topics.api.v0.groups import KeyedGroups
from topics.api.v0.jobs import Jobs
from topics.api.v0.multi_append import MultiAppend
from topics.api.v0.pipelines import Pipelines
from topics.api.v0.probes import probe_routes
from topics.api.v0.queues import Queues
from topics.api.v0.records import Records
from topics.api.v0.routers import Routers
from topics.api.v0.schedules import Schedules
from topics.api.v0.topics import Topics
from topics.api.v0.transactions import Txns
from topics.api.waiting import Handlers
from topics.api.webhooks.sender import Sender
from topics.api.webhooks.webhook_routes import Webhooks
from topics.engine.core.engine import Engine
from topics.engine.groups.verbs import Consuming
from topics.engine.opening.store import Store
from topics.http.descriptors import raise_limit
from topics.http.limits import http_limits
from topics.http.listener import Listener
from topics.http.loop.sampler import REST_S, Sampler
from topics.http.loop.systemd import ServiceManager
from topics.http.loop.timers import LoopTimers
from topics.http.refusal import Refusal
from topics.http.request import Request
from topics.http.tls.certificate import Tls, UnusableCertificate, tls_of
from topics.model.clock import Clock, SystemClock
from topics.model.settings import Settings
from topics.model.variant import VARIANT
from topics.model.webhooks.addresses import AddressPolicy
from topics.storage.disk import Disk
from topics.storage.secret import make_secret, read_secret

log = logging.getLogger("topics.server")

STDERR = 2
DRAIN_GRACE_S = 10.0
# The interval of turns when nothing happens, and the pause after a turn that failed.
HOUSEKEEPING_S, FAILED_REST_S = 0.02, 1.0
# How long durable changes are published at once; what is left then is answered with the next tick.
SETTLED_S = 0.001


def run(settings: Settings, *, log_format: str, origins: Mapping[str, str] | None = None) -> int:
    """Serve until stopped; returns the exit code. Invalid settings are raised before anything is opened."""
    recent_log = RecentLog()
    handler = start_logging(log_format, settings.log_level, recent_log)
    authenticator = authenticator_of(settings)
    tokens = Tokens(settings, authenticator)
    tls = tls_of(settings)
    settings.forget_secrets()
    raise_limit()
    gc.collect()
    with contextlib.ExitStack() as stack:
        stack.callback(handler.stream.drain)
        if settings.tracing:
            stack.callback(start_exporting())
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        next_start: Settings | None = settings
        while next_start is not None:
            next_start = runner.run(serve(next_start, authenticator, tokens, origins or {}, recent_log, tls, handler))
            gc.unfreeze()
    return 0


async def serve(
    settings: Settings,
    authenticator: Authenticator,
    tokens: Tokens,
    origins: Mapping[str, str],
    recent_log: RecentLog,
    tls: Tls | None = None,
    handler: logging.StreamHandler[LogStream] | None = None,
    disk: Disk | None = None,
) -> Settings | None:
    """Serve until stopped; the settings to start again with at once, if another server has taken over."""
    loop = asyncio.get_running_loop()
    server = Server(
        settings,
        authenticator,
        loop,
        disk or Disk(),
        tokens,
        origins=origins,
        recent_log=recent_log,
        process=Process(
            ServiceManager(loop, os.environ), tls, handler, Sender(loop, AddressPolicy(settings.webhooks_allow))
        ),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    # Without a certificate to read again, only a terminal that was closed should end the server.
    ends = tls is None and os.isatty(STDERR)
    loop.add_signal_handler(signal.SIGHUP, server.stop if ends else server.reload)
    await server.listen()
    try:
        if await server.open():
            server.start()
            await server.stopped()
    finally:
        await server.close()
    if server.rejoins_on is not None:
        return dataclasses.replace(settings, standby=True, port=server.rejoins_on)
    log.info("stopped")
    return None


class Process(NamedTuple):
    """What a server in a process of its own has, and one inside a test has not."""

    manager: ServiceManager
    tls: Tls | None = None
    log_handler: logging.StreamHandler[LogStream] | None = None
    sender: Sender | None = None

    def request_lines(
        self, settings: Settings, recent_log: RecentLog, loop: asyncio.AbstractEventLoop
    ) -> BufferedLines | None:
        """Where lines about requests go; None if there are none."""
        if self.log_handler is None or not (settings.access_log or settings.slow_request_ms or settings.tracing):
            return None
        return BufferedLines(self.log_handler, recent_log, loop)


class Server:
    """Connects the parts; all of them run in one loop."""

    def __init__(
        self,
        settings: Settings,
        authenticator: Authenticator,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        tokens: Tokens | None = None,
        clock: Clock | None = None,
        *,
        origins: Mapping[str, str] | None = None,
        recent_log: RecentLog | None = None,
        process: Process | None = None,
    ) -> None:
        process = process or Process(ServiceManager(loop, {}))
        self._manager, self._sender = process.manager, process.sender
        self._settings, self._origins = settings, origins or {}
        self._recent_log = recent_log or RecentLog()
        self._spans = RequestSpans() if settings.tracing else None
        self._request_lines = process.request_lines(settings, self._recent_log, loop)
        self._authenticator = authenticator
        self._tokens = tokens or Tokens(settings, authenticator)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._loop, self._stop = loop, asyncio.Event()
        clock = self._clock = clock or SystemClock()
        timers = LoopTimers(loop, clock.monotonic_ms)
        # The server starts again as a standby, on this port: its store is not to be used any more.
        self.rejoins_on: int | None = None
        self.store = Store(
            settings.data_dir, settings, clock=clock, disk=disk, notify=self._notify, wake=self._wake, timers=timers
        )
        self._notified = False
        # the API
        self._lifecycle = Lifecycle(lambda: self.store.progress)
        self._promotion = Promotion(self.store)
        self._runner = self.store.runner
        self._deadlines = self.store.deadlines
        self._pressure = Pressure(self._debt_bytes, time.monotonic)
        self._usage = Usage()
        self._history = History(self.store, self._usage, settings.data_dir, self._clock.now_ms)
        self._delivery: Delivery | None = None
        # The next turn of the store: soon, or by a timer. A handle does not have its time: uvloop's do not.
        self._turn_due = self._stopped = False
        self._turn_timer: asyncio.Handle | None = None
        self._turn_s = 0.0
        self._disk = disk
        self._stream_tokens = StreamTokens(authenticator, read_secret(disk, settings.data_dir) or b"", self._clock)
        cors = Cors(settings.cors_origins)
        self._api = self._new_api(cors)
        self._listener = self._new_listener(cors, process.tls)
        self._usage.listener = self._listener
        self._api.add_slices = self._listener.slices.add
        self._watchdog = self._usage.watchdog = self._listener.watchdog
        self._pace = self._listener.pace
        self._runner.on_ran = self._ran
        self._sampler = Sampler(loop, SAMPLE_MS / 1000, self._sampled, self._is_idle, self._collect)

    def _new_api(self, cors: Cors) -> Api:
        """With the routes that need no store; the others follow when it is open."""
        api_class = Api if self._request_lines is None else ObservedApi
        api = api_class(
            self._authenticator,
            self._lifecycle,
            Handlers(self._runner),
            RouteTable([*self._routes_without_store(), *self._console_routes(), route_before_ready(self._lifecycle)]),
            self._settings,
            cors=cors,
            stream_tokens=self._stream_tokens,
        )
        if isinstance(api, ObservedApi):
            api.spans = self._spans
        return api

    def _new_listener(self, cors: Cors, tls: Tls | None) -> Listener:
        return Listener(
            self._api.handle,
            loop=self._loop,
            limits=http_limits(self._settings),
            render_error=render_error,
            on_head=self._api.handle_head,
            on_reply=on_reply(cors, self._request_log(), self._promotion.age),
            tls=tls,
        )

    def _request_log(self) -> RequestLog | None:
        settings = self._settings
        if self._request_lines is None:
            return None
        every = settings.access_log_sample if settings.access_log else 0
        return RequestLog(self._request_lines, every=every, slow_ms=settings.slow_request_ms, spans=self._spans)

    # --- starting ---

    @property
    def port(self) -> int:
        return self._listener.port

    async def listen(self) -> None:
        settings = self._settings
        log.info("topics %s (%s), data in %s", VERSION, VARIANT, settings.data_dir)
        say_access(settings.host, self._authenticator, self._tokens)
        say_tls(settings.host, self._listener.tls)
        await self._listener.start(settings.host, settings.port)
        self.store.bucket_side.port = self.port
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        scheme = "http" if self._listener.tls is None else "https"
        log.info("listening on %s://%s:%d", scheme, host, self.port)

    def reload(self) -> None:
        """Use a new certificate for new connections; the old one stays if the new one cannot be used."""
        tls = self._listener.tls
        if tls is None:
            log.info("SIGHUP: there is no certificate to read again")
            return
        # A manager that waits for the start would take the end of the reload for it.
        serving = self._lifecycle.serving
        if serving:
            self._manager.reloading()
        try:
            tls.reload()
        except UnusableCertificate as error:
            log.error("the certificate was not replaced: %s", error)
        else:
            log.info("the certificate was read again")
            say_tls(self._settings.host, tls)
        if serving:
            self._manager.ready()

    async def open(self) -> bool:
        """Recover while replying "not ready"; False if stopped before it was done."""
        started_s = time.monotonic()
        # Objects made from here on live as long as the process, and collecting them would be a pause.
        gc.disable()
        opening = cast("Generator[float, None, None]", self.store.opening())
        step_s = started_s
        for _ in opening:
            self._watchdog.note(time.monotonic() - step_s, "recovery")
            self._manager.starting(self.store.progress)
            await asyncio.sleep(0)
            step_s = time.monotonic()
            if self._stop.is_set():
                opening.close()
                return False
        state = self.store.state
        took_ms = (time.monotonic() - started_s) * 1000
        say_ready(len(state.by_name), state.count, took_ms)
        say_role(self.store.role, self._settings.bucket_takeover)
        return True

    def start(self) -> None:
        """Accept requests, and start the upkeep of the process."""
        self.take_requests()
        # Collections need not look at the existing objects again.
        gc.freeze()
        self._sampler.start()
        self._manager.ready()

    def take_requests(self) -> None:
        """From here on a tick ends with one write of everything submitted in it."""
        if isinstance(self._authenticator, KeyAuthenticator) and not self._stream_tokens.secret:
            self._stream_tokens.secret = make_secret(self._disk, self._settings.data_dir)
        self._delivery = Delivery(
            self.store.live,
            self._settings,
            self._clock,
            self._loop,
            pressure=self._pressure,
            usage=self._usage,
            lifecycle=self._lifecycle,
            deadlines=self._deadlines,
            reader=self.store.reader,
            runner=self._runner,
            wake=self._wake,
            in_thread=self._listener.in_thread,
            slices=self._listener.slices,
            budget=self._listener.budget,
        )
        base_path = BasePath(self._settings.base_path).path
        sqs = sqs_routes(
            self.store.claims, self.store.engine, self._pressure, self._authenticator, self._clock, base_path
        )
        self._api.table = RouteTable([*self._routes(self._delivery), *sqs, *self._console_routes()])
        self._listener.on_tick_end(self._end_tick)
        if self._settings.bucket is not None:
            self._lifecycle.check_primary = self._promotion.check_primary
        self.store.on_primary = self._start_sending
        if self.store.standby is None:
            self._start_sending()
        self._turn_soon()
        self._lifecycle.opened()

    def _start_sending(self) -> None:
        """Only a primary delivers to webhooks."""
        if self._sender is not None:
            self.store.dispatcher.start(self._sender.post)

    def _routes_without_store(self) -> list[Route]:
        metrics = Metrics(self.store, self._lifecycle, self._usage, self._settings.data_dir)
        return [*probe_routes(self._lifecycle, self.store), *metrics.routes()]

    def _console_routes(self) -> list[Route]:
        """The pages need no store, and are not part of the API that OpenAPI describes."""
        if self._settings.console == "off":
            return []
        return ConsolePages(BasePath(self._settings.base_path), self._in_thread).routes()

    def _in_thread(self, work: Callable[[], bytes], done: Callable[[bytes | Refusal], None]) -> None:
        self._listener.in_thread(work, done)

    def _routes(self, delivery: Delivery) -> list[Route]:
        """All routes. A new resource is a file in api/ and one line here."""
        engine = self.store.engine
        claims = self.store.claims
        self._work = Work(engine, self._pressure, claims, delivery.streams, self._wake)
        return openapi_routes(
            [
                *Topics(engine).routes(),
                *Records(engine, self._pressure, self._runner).routes(),
                *MultiAppend(self.store.multi_append, engine, self._pressure).routes(),
                *Queues(engine, self._pressure, claims).routes(),
                *Jobs(claims.queues, self.store.job_lookup).routes(),
                *self._work.routes(),
                *Routers(self.store.routers).routes(),
                *Txns(self.store.transactions).routes(),
                *Pipelines(self.store.pipelines).routes(),
                *Schedules(self.store.schedules).routes(),
                *Webhooks(self.store.webhooks).routes(),
                *delivery.routes(),
                *self._stream_tokens.routes(),
                *self._group_routes(engine),
                *self._backups().routes(),
                *Compaction(self.store, self._settings.data_dir, self._settings.cold_dir).routes(),
                *self._promotion.routes(),
                *self._server_state().routes(),
                *Readers(self.store).routes(),
                *Overview(self.store, self._usage, self._settings.data_dir, self._clock.now_ms).routes(),
                *self._routes_without_store(),
            ]
        )

    def _server_state(self) -> ServerState:
        return ServerState(
            self.store,
            self._settings,
            self._origins,
            self._authenticator,
            self._lifecycle,
            self._history,
            self._recent_log,
        )

    def _backups(self) -> Backups:
        return Backups(self.store, self._lifecycle, self._deadlines, self._settings.slow_consumer_timeout_ms)

    def _group_routes(self, engine: Engine) -> list[Route]:
        consuming = Consuming(engine, self._clock, 1000 * self._settings.visibility_timeout_secs)
        groups = Groups(consuming, self._runner, self._tokens)
        keyed = KeyedGroups(consuming)
        login = Login(self._tokens, self._loop, self._proxies)
        return [*groups.routes(), *login.routes(), *keyed.routes()]

    # --- running ---

    def accept(self, request: Request) -> None:
        """Handle a request that did not come over a socket."""
        self._listener.accept(request)

    def _end_tick(self) -> None:
        """Changes that requests have submitted are written, and answered, in the same tick."""
        self._sampler.ticked = True
        if self._sampler.resting:
            self._sampler.end_rest()
            self._turn_by(HOUSEKEEPING_S)
        self.store.tick()
        if self.store.has_work:
            self._turn_soon()

    def _notify(self) -> None:
        """Called from the store's threads."""
        if not self._notified:
            self._notified = True
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        """What became durable is answered at once; the turn comes after, because replies leave between callbacks."""
        if self._pace.puts_off(self._settle):
            return
        self._notified = False
        if not self.store.ready or self._stopped:
            return
        started_s = time.monotonic()
        try:
            self.store.settle(SETTLED_S)
        except Exception:
            log.exception("what the store's threads have done could not be published and is tried again")
        took_s = time.monotonic() - started_s
        self._note(took_s, "what has become durable")
        if took_s < SETTLED_S:
            self._listener.end_tick()
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Durable changes, background work, housekeeping: between two ticks, so that replies are sent first."""
        if self._pace.puts_off(self._turn):
            self._turn_due = True
            return
        self._turn_due = False
        if not self.store.ready or self._stopped:
            return
        started_s = time.monotonic()
        wait_s: float | None = HOUSEKEEPING_S
        try:
            wait_s = self.store.turn(ticks=True)
        except Exception:
            log.exception("a turn of the store failed and will be tried again")
            wait_s = FAILED_REST_S
        self._note(time.monotonic() - started_s, "a turn of the store")
        if self._promotion.outlived is not None:
            self._rejoin(self._promotion.outlived)
        if wait_s == 0.0 and not self.store.has_work:
            # Only tasks can continue, and they have asked for a tick: a turn as well would do the same work twice.
            wait_s = None
        if wait_s == 0.0:
            self._turn_soon()
        else:
            pause_s = REST_S if self._sampler.resting and self.store.is_quiet else HOUSEKEEPING_S
            self._turn_by(pause_s if wait_s is None else wait_s)

    def _turn_by(self, wait_s: float) -> None:
        """Run the next turn at that time at the latest."""
        due_s = self._loop.time() + wait_s
        if self._turn_timer is not None:
            if self._turn_s <= due_s:
                return
            self._turn_timer.cancel()
        self._turn_timer, self._turn_s = self._loop.call_at(due_s, self._turn_timed), due_s

    def _turn_timed(self) -> None:
        self._turn_timer = None
        self._turn()

    def _ran(self, owner: object, took_s: float) -> None:
        if isinstance(owner, Call):
            self._watchdog.ran(owner.request, took_s)

    def _wake(self) -> None:
        self._listener.wake()

    def _debt_bytes(self) -> int:
        return self.store.syncer.unsynced_bytes

    def _sampled(self, lag_ms: float, now_s: float) -> None:
        self._pressure.sample(lag_ms)
        self._history.note(lag_ms, now_s)

    def _is_idle(self) -> bool:
        return self.store.is_quiet and self._pressure.is_none

    def _collect(self) -> None:
        if self._pace.puts_off(self._collect):
            return
        started_s = time.monotonic()
        gc.collect(0)
        self._note(time.monotonic() - started_s, "a garbage collection")

    def _note(self, took_s: float, what: str) -> None:
        self._watchdog.note(took_s, what)
        self._pace.took(took_s)

    # --- stopping ---

    def stop(self) -> None:
        """The first time: drain. The second time: no longer wait for clients."""
        if self._stop.is_set():
            self._listener.close()
        self._stop.set()

    def _rejoin(self, why: str) -> None:
        """Another server is primary: this one follows it, with a store that is filled anew from the bucket."""
        if not self._stop.is_set():
            log.warning("starting again as a standby: %s", why)
            self.rejoins_on = self.port
            self._lifecycle.rejoins = self.store.commit_log.closed
            self._stop.set()

    async def stopped(self) -> None:
        await self._stop.wait()

    async def close(self) -> None:
        """Stop accepting, end waiting calls, let replies be sent, then write the last checkpoint."""
        self._lifecycle.drain()
        (self._manager.stopping if self.rejoins_on is None else self._manager.reloading)()
        log.info("draining %s", counted(self._listener.connections_open, "connection"))
        drained = asyncio.ensure_future(self._listener.drain(DRAIN_GRACE_S))
        await asyncio.sleep(0)
        # Answered now, when their connections know that this is their last reply.
        self._deadlines.expire_all()
        if self._delivery is not None:
            self._delivery.drain()
            self._work.drain()
            await self._delivery.drained()
            if self._sender is not None:
                await self._sender.close(DRAIN_GRACE_S, self.store.dispatcher)
        await drained
        self.put_away()

    def put_away(self) -> None:
        """Write the last checkpoint; forwarding continues at the next start."""
        self._stopped = True
        if self._turn_timer is not None:
            self._turn_timer.cancel()
        self.store.close()
        self._manager.close()
        if self._request_lines is not None:
            self._request_lines.close()
