"""From a frame to its handler and back: decodes, calls what serves it, encodes the answer, measures each stage.

A large request is decoded in slices and a large answer is encoded in slices (`pacing`). While a request of a connection
is decoded, or appended, in slices, later requests of the same connection wait: their handlers run in the order they
were sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tidelog.broker.pacing import SlowLane
from tidelog.config.tidelog_settings import MAX_ELEMENTS
from tidelog.errors import ErrorCode, TidelogError, TooManyElementsError, UnsupportedVersionError, WireError
from tidelog.metrics import Metrics
from tidelog.net.channel import Call
from tidelog.net.connection import ServerConnection
from tidelog.ports import Clock
from tidelog.types import Buffer
from tidelog.wire import API, Message
from tidelog.wire.api import API_VERSIONS
from tidelog.wire.frames import (
    RequestDecoding,
    RequestFrame,
    ResponseEncoding,
    decode_request,
    decode_request_header,
    encode_response,
)
from tidelog.wire.versions import Versions

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_NS_PER_MS = 1e6
_MOST_NOTED = 256
_SLICED_ABOVE_BYTES = 64 * 1024
"""A request that is larger may take long to decode; a produce with few partitions still takes one step."""
_HELD_AT_ONCE = 16
"""Requests that waited for a large one are served so many at a time."""
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


Result: TypeAlias = "Message | Later | Awaitable[Message | None] | None"


class InSlices:
    """The result of a handler that goes on in slices: the next request of the connection waits until it is done."""

    __slots__ = ("work",)

    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        self.work = work


class Served(NamedTuple):
    """One API as this broker serves it."""

    versions: Versions
    handler: Callable[[Any, Any, Call], Result | InSlices]
    """Answers at once, or later; None is no answer."""
    max_elements: int | None = None
    """Elements of a request, where tidelog.request.max.elements does not fit: the work on one is larger than usual, or
    the request comes from the controller and has to name every partition."""
    one_at_a_time: bool = False
    """Its answer may be much larger than the request, so a connection gets one before the next is made. Otherwise a
    client that reads nothing could have hundreds of them made."""
    too_large: Callable[[Buffer, int], Message | None] | None = None
    """Makes the answer to a request with too many elements of this version, where an answer has no error for all. None
    if it cannot be made."""


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


class _Handled(Exception):  # noqa: N818 - it ends work and is no error
    """A request that was decoded in slices has been answered, or needs no answer."""


class Dispatcher:
    """What takes requests out of the channel."""

    def __init__(
        self, served: Mapping[int, Served], clock: Clock, metrics: Metrics, max_elements: int = MAX_ELEMENTS
    ) -> None:
        self._served = served
        self._clock = clock
        self._metrics = metrics
        self._max_elements = max_elements
        self.lane = SlowLane()
        self._stages: dict[int, _Stages] = {}
        self._later: dict[asyncio.Task[None], tuple[Call, Awaitable[Any]]] = {}
        self._parked: dict[Call, None] = {}
        self._held: dict[ServerConnection, deque[Call]] = {}
        """Requests that wait for an earlier one of their connection, which is served in slices."""
        self._refused = metrics.counter("kafka_network_request_channel_refused_requests_total")
        self._too_large = metrics.counter("tidelog_network_request_channel_too_many_elements_total")
        self.broker: Broker | None = None
        """Set when the broker is complete; nothing is served before."""

    def handle(self, call: Call) -> None:
        """Never raises: what is wrong with a request ends its connection, and no other."""
        call.taken_ns = self._clock.monotonic_ns()
        if self._held and call.connection in self._held:
            self._held[call.connection].append(call)
            return
        rest = self._serve(call)
        if rest is not None:
            self._held[call.connection] = deque()
            self._run(call, rest, self._serve_held(call, rest))

    def _serve(self, call: Call) -> Coroutine[Any, Any, Result] | None:
        """What is left to be done in slices before the next request of the connection is served, if anything is."""
        if call.connection.is_closed:
            return None
        assert call.frame is not None
        served = self._served.get(call.api_key)
        limit = self._max_elements if served is None or served.max_elements is None else served.max_elements
        try:
            if len(call.frame) <= _SLICED_ABOVE_BYTES:
                return self._decoded(call, decode_request(call.frame, limit))
            decoding = RequestDecoding(call.frame, limit)
            decoded = decoding.step()
            return self._decode_rest(call, decoding) if decoded is None else self._decoded(call, decoded)
        except (UnsupportedVersionError, WireError) as failure:
            self._unreadable(call, failure)
            return None

    def _decoded(self, call: Call, frame: RequestFrame) -> Coroutine[Any, Any, Result] | None:
        header, request = frame
        call.version, call.correlation_id = header.request_api_version, header.correlation_id
        call.client_id = header.client_id
        served = self._served.get(call.api_key)
        if served is None or call.version not in served.versions:
            self._unsupported(call, f"{API[call.api_key].name} v{call.version} is not served")
            return None
        try:
            result = served.handler(self.broker, request, call)
            if isinstance(result, InSlices):
                return result.work
            if served.one_at_a_time and asyncio.iscoroutine(result):
                return result
        except Exception as failure:
            self._failed(call, failure)
            return None
        self._take(call, result)
        return None

    def _take(self, call: Call, result: Result) -> None:
        """What the handler has come to."""
        call.handled_ns = self._clock.monotonic_ns()
        try:
            if isinstance(result, Message) or result is None:
                self._answer(call, result)
            elif isinstance(result, Later):
                self._parked[call] = None
                call.let_go()
                result.sent_by(lambda make: self._answer_parked(call, make))
            else:
                self._await(call, result)
        except Exception as failure:
            self._failed(call, failure)

    # In slices

    async def _decode_rest(self, call: Call, decoding: RequestDecoding) -> Result:
        """Raises _Handled if the request has come to its end already."""
        while True:
            await self.lane.turn()
            if call.connection.is_closed:
                raise _Handled
            try:
                decoded = decoding.step()
            except (UnsupportedVersionError, WireError) as failure:
                self._unreadable(call, failure)
                raise _Handled from None
            if decoded is not None:
                break
        rest = self._decoded(call, decoded)
        if rest is None:
            raise _Handled
        return await rest

    async def _serve_held(self, call: Call, rest: Coroutine[Any, Any, Result] | None) -> None:
        """The rest of a request, and then those of its connection that have come meanwhile."""
        connection = call.connection
        held = self._held[connection]
        try:
            served = 0
            while rest is not None:
                try:
                    result = await rest
                    if isinstance(result, Message):
                        call.handled_ns = self._clock.monotonic_ns()
                        await self._answer_in_slices(call, result)
                    else:
                        self._take(call, result)
                except _Handled:
                    pass
                except Exception as failure:
                    self._failed(call, failure)
                rest = None
                while held and rest is None:
                    if connection.is_stalled:
                        connection.take_back(held)
                        held.clear()
                        break
                    call = held.popleft()
                    rest = self._serve(call)
                    served += 1
                    if served % _HELD_AT_ONCE == 0 and rest is None:
                        await self.lane.turn()
        except asyncio.CancelledError:
            connection.close(f"{API[call.api_key].name} was given up")
            raise
        finally:
            del self._held[connection]

    def _run(self, call: Call, inner: Awaitable[Any], outer: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(outer)
        self._later[task] = call, inner
        task.add_done_callback(lambda task: self._later.pop(task))

    # Answers

    def _await(self, call: Call, result: Awaitable[Message | None]) -> None:
        self._run(call, result, self._answer_later(call, result))

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
            response = await result
            if response is None:
                self._answer(call, None)
            else:
                await self._answer_in_slices(call, response)
        except asyncio.CancelledError:
            call.connection.close(f"{API[call.api_key].name} was given up")
            raise
        except Exception as failure:
            self._failed(call, failure)

    async def _answer_in_slices(self, call: Call, response: Message) -> None:
        """Who had to wait may have a large answer: it is encoded step by step. Most are done after the first."""
        call.answered_ns = self._clock.monotonic_ns()
        if self._is_gone(call):
            return
        encoding = ResponseEncoding(response, call.version, call.correlation_id)
        while (parts := encoding.step()) is None:
            await self.lane.turn()
        if not self._is_gone(call):
            call.answer(parts)

    @staticmethod
    def _is_gone(call: Call) -> bool:
        return call.connection.is_closed

    def _answer(self, call: Call, response: Message | None) -> None:
        call.answered_ns = self._clock.monotonic_ns()
        if call.connection.is_closed:
            return
        call.answer(() if response is None else encode_response(response, call.version, call.correlation_id))

    # Refusals

    def _unreadable(self, call: Call, failure: TidelogError) -> None:
        if isinstance(failure, UnsupportedVersionError):
            self._unsupported(call, str(failure))
        elif isinstance(failure, TooManyElementsError):
            self._too_many_elements(call, failure)
        else:
            self._refuse(call, f"a request that cannot be read: {failure}")

    def _too_many_elements(self, call: Call, failure: TooManyElementsError) -> None:
        """INVALID_REQUEST where an answer has one error for all, or can be made in another way; else the connection is
        closed, as for any request that cannot be read."""
        self._too_large.add()
        assert call.frame is not None
        header = decode_request_header(call.frame)
        call.version, call.correlation_id = header.request_api_version, header.correlation_id
        api = API[call.api_key]
        served = self._served.get(call.api_key)
        answer: Message | None = None
        if served is not None and call.version in served.versions:
            if any(f.name == "error_code" and call.version in f.versions for f in api.response.__schema__.fields):
                answer = api.response(error_code=ErrorCode.INVALID_REQUEST)
            elif served.too_large is not None:
                answer = served.too_large(call.frame, call.version)
        if answer is None:
            self._refuse(call, f"{api.name} v{call.version} with {failure}")
            return
        self._refused.add()
        call.handled_ns = self._clock.monotonic_ns()
        self._answer(call, answer)

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
