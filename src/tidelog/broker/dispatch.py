"""From a frame to its handler and back: decodes, calls what serves it, encodes the answer, measures each stage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tidelog.errors import TidelogError, UnsupportedVersionError, WireError
from tidelog.metrics import Metrics
from tidelog.net.channel import Call
from tidelog.ports import Clock
from tidelog.wire import API, Message
from tidelog.wire.api import API_VERSIONS
from tidelog.wire.frames import decode_request, decode_request_header, encode_response
from tidelog.wire.versions import Versions

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_NS_PER_MS = 1e6
_MOST_NOTED = 256
_STAGES = (
    "request_queue_time_ms",
    "local_time_ms",
    "remote_time_ms",
    "response_queue_time_ms",
    "total_time_ms",
)


class HangUpError(TidelogError):
    """Raised by a handler that has no answer: the connection is closed, and whoever asked has to come again."""


MakeAnswer: TypeAlias = Callable[[], Message | Awaitable[Message]]


class Later:
    """An answer that is not there yet: given by whoever holds this, once, and not before the handler has returned.

    A callback and no coroutine: requests in purgatory are answered within the turn that ends their waiting.
    """

    __slots__ = ("_send",)

    def __init__(self) -> None:
        self._send: Callable[[MakeAnswer], None] | None = None

    def sent_by(self, send: Callable[[MakeAnswer], None]) -> None:
        """`send` gets what makes the answer."""
        assert self._send is None, "an answer goes one way"
        self._send = send

    def answer(self, make: MakeAnswer) -> None:
        assert self._send is not None, "the handler has not returned"
        self._send(make)

    async def wait(self) -> Message:
        """For a handler that has awaited something else before."""
        told: asyncio.Future[MakeAnswer] = asyncio.get_running_loop().create_future()
        self.sent_by(lambda make: None if told.done() else told.set_result(make))
        made = (await told)()
        return made if isinstance(made, Message) else await made


class Served(NamedTuple):
    """One API as this broker serves it."""

    versions: Versions
    handler: Callable[[Any, Any, Call], Message | Later | Awaitable[Message | None] | None]
    """Answers at once, or later; None is no answer."""


class _Stages:
    """How long requests of one kind spend where (S7.5), by Kafka's names.

    Times are noted as they come and sorted into the histograms now and then, and before somebody looks at them.
    """

    __slots__ = ("_histograms", "_noted", "note")

    def __init__(self, metrics: Metrics, request: str) -> None:
        prefix = "kafka_network_request_metrics_"
        self._histograms = [metrics.histogram(prefix + name, request=request) for name in _STAGES]
        self._noted: list[tuple[int, int, int, int, int]] = []
        self.note = self._noted.append
        """When it arrived, was taken, handled, answered, sent."""
        metrics.before_reading(self.sort)

    @property
    def is_due(self) -> bool:
        return len(self._noted) >= _MOST_NOTED

    def sort(self) -> None:
        queue, local, remote, response, total = self._histograms
        for arrived_ns, taken_ns, handled_ns, answered_ns, sent_ns in self._noted:
            queue.observe((taken_ns - arrived_ns) / _NS_PER_MS)
            local.observe((handled_ns - taken_ns) / _NS_PER_MS)
            remote.observe((answered_ns - handled_ns) / _NS_PER_MS)
            response.observe((sent_ns - answered_ns) / _NS_PER_MS)
            total.observe((sent_ns - arrived_ns) / _NS_PER_MS)
        self._noted.clear()


class Dispatcher:
    """What takes requests out of the channel."""

    def __init__(self, served: Mapping[int, Served], clock: Clock, metrics: Metrics) -> None:
        self._served = served
        self._clock = clock
        self._metrics = metrics
        self._stages: dict[int, _Stages] = {}
        self._later: dict[asyncio.Task[None], tuple[Call, Awaitable[Message | None]]] = {}
        self._parked: dict[Call, None] = {}
        self._refused = metrics.counter("kafka_network_request_channel_refused_requests_total")
        self.broker: Broker | None = None
        """Set when the broker is complete; nothing is served before."""

    def handle(self, call: Call) -> None:
        """Never raises: what is wrong with a request ends its connection, and no other."""
        call.taken_ns = self._clock.monotonic_ns()
        if call.connection.is_closed:
            return
        assert call.frame is not None
        try:
            header, request = decode_request(call.frame)
        except UnsupportedVersionError as failure:
            self._unsupported(call, str(failure))
            return
        except WireError as failure:
            self._refuse(call, f"a request that cannot be read: {failure}")
            return
        call.version, call.correlation_id = header.request_api_version, header.correlation_id
        call.client_id = header.client_id
        served = self._served.get(call.api_key)
        if served is None or call.version not in served.versions:
            self._unsupported(call, f"{API[call.api_key].name} v{call.version} is not served")
            return
        try:
            result = served.handler(self.broker, request, call)
            call.handled_ns = self._clock.monotonic_ns()
            if isinstance(result, Message) or result is None:
                self._answer(call, result)
                return
            if isinstance(result, Later):
                self._parked[call] = None
                result.sent_by(lambda make: self._answer_parked(call, make))
                return
        except Exception as failure:
            self._failed(call, failure)
            return
        self._await(call, result)

    def _await(self, call: Call, result: Awaitable[Message | None]) -> None:
        task = asyncio.ensure_future(self._answer_later(call, result))
        self._later[task] = call, result
        task.add_done_callback(lambda task: self._later.pop(task))

    def _answer_parked(self, call: Call, make: MakeAnswer) -> None:
        self._parked.pop(call, None)
        try:
            made = make()
            if isinstance(made, Message):
                self._answer(call, made)
                return
        except Exception as failure:
            self._failed(call, failure)
            return
        self._await(call, made)

    async def _answer_later(self, call: Call, result: Awaitable[Message | None]) -> None:
        try:
            self._answer(call, await result)
        except asyncio.CancelledError:
            call.connection.close(f"{API[call.api_key].name} was given up")
            raise
        except Exception as failure:
            self._failed(call, failure)

    def _answer(self, call: Call, response: Message | None) -> None:
        call.answered_ns = self._clock.monotonic_ns()
        if call.connection.is_closed:
            return
        call.answer(() if response is None else encode_response(response, call.version, call.correlation_id))

    def _unsupported(self, call: Call, why: str) -> None:
        """ApiVersions is how a client finds out what is served, so it gets an answer that every client can read."""
        if call.api_key != API_VERSIONS:
            self._refuse(call, why)
            return
        assert call.frame is not None
        try:
            call.correlation_id = decode_request_header(call.frame).correlation_id
        except WireError as failure:
            self._refuse(call, f"a request that cannot be read: {failure}")
            return
        from tidelog.broker.handlers.api_versions import unsupported

        call.version = 0
        call.handled_ns = self._clock.monotonic_ns()
        self._answer(call, unsupported(self._served))

    def _refuse(self, call: Call, why: str) -> None:
        self._refused.add()
        call.connection.close(why)

    def _failed(self, call: Call, failure: Exception) -> None:
        """A fault of ours. A closed connection makes the client try again; an error code might make it give up."""
        if isinstance(failure, HangUpError):
            call.connection.close(f"{API[call.api_key].name}: {failure}")
            return
        call.connection.close(f"{API[call.api_key].name} v{call.version} failed: {failure!r}", failure)

    def sent(self, call: Call) -> None:
        """The answer is on its way: note how long each stage took."""
        stages = self._stages.get(call.api_key)
        if stages is None:
            stages = self._stages[call.api_key] = _Stages(self._metrics, API[call.api_key].name)
        stages.note((call.arrived_ns, call.taken_ns, call.handled_ns, call.answered_ns, self._clock.monotonic_ns()))
        if stages.is_due:
            stages.sort()

    async def close(self) -> None:
        waiting = dict(self._later)
        for call in (*self._parked, *(call for call, _ in waiting.values())):
            call.connection.close(f"{API[call.api_key].name} was given up")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for _, result in waiting.values():
            # A task that was cancelled before its first step has not even begun what it was to await.
            if asyncio.iscoroutine(result):
                result.close()
