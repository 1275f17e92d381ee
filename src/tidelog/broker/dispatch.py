"""From a frame to its handler and back: decodes, calls what serves it, encodes the answer, measures each stage.

A large request waits for a place (`large_requests`) and is decoded in slices, and a large answer is encoded in slices
(`pacing`). While a request of a connection is decoded, or appended, in slices, later requests of the same connection
wait: their handlers run in the order they were sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tidelog.broker.large_requests import LargeRequests, Place, weight
from tidelog.broker.long_waits import GiveUp
from tidelog.broker.pacing import Pace, SlowLane
from tidelog.broker.request_stages import RequestStages, RequestTimes
from tidelog.broker.slow_requests import SlowRequests
from tidelog.config.tidelog_settings import MAX_ELEMENTS, SLOW_REQUEST_MS
from tidelog.errors import ErrorCode, TidelogError, TooManyElementsError, UnsupportedVersionError, WireError
from tidelog.metrics import Metrics
from tidelog.net.channel import Call
from tidelog.net.connection import ServerConnection
from tidelog.ports import Clock
from tidelog.types import Buffer
from tidelog.wire import API, Message
from tidelog.wire.api import API_VERSIONS, FETCH, PRODUCE
from tidelog.wire.frames import (
    FIRST_STEP_ELEMENTS,
    STEP_ELEMENTS,
    RequestDecoding,
    RequestFrame,
    ResponseEncoding,
    decode_request,
    decode_request_header,
    encode_response,
)
from tidelog.wire.versions import Versions
from tidelog.wording import MOST_OF_NAME

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_AT_ONCE = FIRST_STEP_ELEMENTS
"""Elements of a request that is decoded at once. A request with more of them is a large one."""
_SLICED_ABOVE_BYTES = 64 * 1024
"""A request that is larger may take long to decode though it has few elements."""
_LARGE_OF_CLIENTS = 250_000
_LARGE_OF_BROKERS = 250_000
_LARGE_OF_CONTROLLER = 1_000_000
"""Elements of large requests that are decoded and handled at a time. Clients keep no broker waiting. Whoever calls
itself a broker does not keep the controller waiting, whose requests may be of this size."""
_MOST_VERSIONS = 100
_COST_OF_HELD = 10
_NS_OF_ELEMENT = 10_000
"""Elements of a slice that a request takes which has waited for a large one, besides those for the time it takes."""


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


Result: TypeAlias = "Message | Later | Awaitable[Message | Later | None] | None"


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
    min_elements: int = 0
    """Elements that a request may have whatever tidelog.request.max.elements is: brokers send it to each other."""
    one_at_a_time: bool = False
    """Its answer may be much larger than the request, so a connection gets one before the next is made. Otherwise a
    client that reads nothing could have hundreds of them made."""
    peek: Callable[[Any, Call], Awaitable[Message | None]] | None = None
    """Looks at the beginning of a large request before it gets a place. Makes the answer if the request is refused."""
    too_large: Callable[[Buffer, int], Message | None] | None = None
    """Makes the answer to a request with too many elements of this version, where an answer has no error for all. None
    if it cannot be made."""


def _limit_of(served: Served, max_elements: int) -> int:
    return max(max_elements, served.min_elements) if served.max_elements is None else served.max_elements


class _Handled(Exception):  # noqa: N818 - it ends work and is no error
    """A request that was decoded in slices has been answered, or needs no answer."""


class Dispatcher:
    """What takes requests out of the channel."""

    def __init__(
        self,
        served: Mapping[int, Served],
        clock: Clock,
        metrics: Metrics,
        max_elements: int = MAX_ELEMENTS,
        control_keys: frozenset[int] = frozenset(),
        slow_ms: int = SLOW_REQUEST_MS,
    ) -> None:
        self._served = served
        self.slow_requests = SlowRequests(slow_ms)
        self._limits = {key: _limit_of(api, max_elements) for key, api in served.items()}
        """Elements that a request may have."""
        self._clock = clock
        self._max_elements = max_elements
        self._control_keys = control_keys
        self.lane = SlowLane()
        self._of_clients = LargeRequests("client", _LARGE_OF_CLIENTS, metrics)
        self._of_brokers = LargeRequests("broker", _LARGE_OF_BROKERS, metrics)
        self._of_controller = LargeRequests("controller", _LARGE_OF_CONTROLLER, metrics)
        self._places: dict[Call, Place] = {}
        """Of large requests that are being decoded and handled."""
        self._times = RequestTimes(metrics, clock)
        self._stages: dict[int, RequestStages] = {}
        """By kind of request and version, as one number; negative for fetches of followers."""
        self._later: dict[asyncio.Task[None], tuple[Call, Awaitable[Any]]] = {}
        self._parked: dict[Call, None] = {}
        self._held: dict[ServerConnection, deque[Call]] = {}
        """Requests that wait for an earlier one of their connection, which is served in slices."""
        self._refused = metrics.counter(
            "tidelog_refused_requests_total", "Requests that could not be read, are not served, or are too large."
        )
        self._too_large = metrics.counter(
            "tidelog_network_request_channel_too_many_elements_total", "Requests that had too many elements."
        )
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
            call.handled_ns = self._clock.monotonic_ns()  # the channel's turn has taken until now
            self._held[call.connection] = deque()
            self._run(call, rest, self._serve_held(call, rest))

    def _serve(self, call: Call) -> Coroutine[Any, Any, Result] | None:
        """What is left to be done in slices before the next request of the connection is served, if anything is."""
        if call.connection.is_closed:
            return None
        frame = call.frame
        assert frame is not None
        limit = self._limits.get(call.api_key, self._max_elements)
        is_short = len(frame) <= _SLICED_ABOVE_BYTES or call.api_key == PRODUCE  # records stay where they are
        try:
            if is_short:
                return self._decoded(call, decode_request(frame, limit if limit < _AT_ONCE else _AT_ONCE))
            decoded = RequestDecoding(frame, limit).first_step()
            return self._serve_large(call, limit) if decoded is None else self._decoded(call, decoded)
        except (UnsupportedVersionError, WireError) as failure:
            if is_short and limit > _AT_ONCE and isinstance(failure, TooManyElementsError):
                return self._serve_large(call, limit)
            self._unreadable(call, failure)
            return None

    def _decoded(
        self, call: Call, frame: RequestFrame, place: Place | None = None
    ) -> Coroutine[Any, Any, Result] | None:
        header, request = frame
        call.version, call.correlation_id = header.request_api_version, header.correlation_id
        call.client_id = header.client_id
        served = self._served.get(call.api_key)
        if served is None or call.version not in served.versions:
            self._unsupported(call, f"{API[call.api_key].name} v{call.version} is not served")
            return None
        try:
            result = served.handler(self.broker, request, call)
            if isinstance(result, Message):  # most of them
                call.handled_ns = call.answered_ns = self._clock.monotonic_ns()
                if not call.connection.is_closed:
                    call.answer(encode_response(result, call.version, call.correlation_id))
                return None
            if isinstance(result, InSlices):
                return result.work
            if isinstance(result, CoroutineType) and (served.one_at_a_time or self._waits_its_turn(call)):
                return result
        except Exception as failure:
            self._failed(call, failure)
            return None
        self._take(call, result, place)
        return None

    def _waits_its_turn(self, call: Call) -> bool:
        """While the lane is crowded, each connection has one request in it. Otherwise a client that sends many requests
        ahead would make others wait for all of them.

        Produces do not wait in the lane. What a follower acknowledges must not wait for a device that is slow to give
        an earlier fetch its records (edge case 34).
        """
        key = call.api_key
        return self.lane.is_crowded and key != PRODUCE and not (key == FETCH and call.connection.is_broker)

    def _take(self, call: Call, result: Result, place: Place | None = None) -> None:
        """What the handler has come to."""
        call.handled_ns = self._clock.monotonic_ns()
        try:
            if isinstance(result, Message) or result is None:
                self._answer(call, result)
            elif isinstance(result, Later):
                self._parked[call] = None
                is_slow = call.handled_ns - call.arrived_ns > self.slow_requests.slow_ns
                # It may be long, and only waiting is left. The log may still want to name a slow one.
                call.client_id = call.client_id[:MOST_OF_NAME] if is_slow and call.client_id else None
                call.let_go()
                result.sent_by(lambda make: self._answer_parked(call, make))
            else:
                self._await(call, result, place)
        except Exception as failure:
            self._failed(call, failure)

    # In slices

    async def _serve_large(self, call: Call, limit: int) -> Result:
        """Waits for a place, decodes the request and has it handled. Raises _Handled in the end."""
        refusal = await self._peek(call)
        if refusal is not None:
            call.handled_ns = self._clock.monotonic_ns()
            self._answer(call, refusal)
            raise _Handled
        size = 0 if call.frame is None else len(call.frame)
        place = await self._place_of(call).enter(call, weight(min(limit, size), size))
        if place is None:
            raise _Handled
        self._places[call] = place
        try:
            decoded = await self._decode(call, limit, place)
            rest = None if decoded is None else self._decoded(call, decoded, place)
            if rest is not None:
                await self._finish(call, rest, place)
        finally:
            self._leave(call, place)
        raise _Handled

    async def _peek(self, call: Call) -> Message | None:
        """What is refused, or has to wait for something else, takes no place from others."""
        served = self._served.get(call.api_key)
        if served is None or served.peek is None or call.frame is None:
            return None
        header = decode_request_header(call.frame)
        call.version, call.correlation_id = header.request_api_version, header.correlation_id
        return await served.peek(self.broker, call) if call.version in served.versions else None

    def _leave(self, call: Call, place: Place) -> None:
        if place.leave():
            del self._places[call]

    @contextmanager
    def waiting(self, call: Call, give_up: GiveUp) -> Iterator[None]:
        """For a handler that has done its work and only waits (`broker.long_waits`). It keeps little of the request."""
        call.let_go()
        if call.connection.is_closed:
            give_up()
        call.when_gone = give_up
        place = self._places.get(call)
        if place is not None:
            place.rest(give_up)
        begun_ns = self._clock.monotonic_ns()
        try:
            yield
        finally:
            call.when_gone = None
            call.waited_ns += self._clock.monotonic_ns() - begun_ns

    def _place_of(self, call: Call) -> LargeRequests:
        if call.api_key in self._control_keys:
            return self._of_controller
        return self._of_brokers if call.connection.is_broker else self._of_clients

    async def _decode(self, call: Call, limit: int, place: Place) -> RequestFrame | None:
        """None if the request cannot be read, or the client has gone."""
        decoding: RequestDecoding | None = None
        steps = 0
        while True:
            await self._turn(call)
            if call.frame is None or call.connection.is_closed:
                return None
            try:
                decoding = decoding or RequestDecoding(call.frame, limit)
                decoded = decoding.step()
            except (UnsupportedVersionError, WireError) as failure:
                self._unreadable(call, failure)
                return None
            steps += 1
            if decoded is not None:
                place.shrink(weight(steps * STEP_ELEMENTS, len(call.frame)))
                return decoded

    async def _turn(self, call: Call) -> None:
        await self.lane.turn(call.connection.is_broker or call.api_key in self._control_keys)

    async def _finish(self, call: Call, rest: Awaitable[Result], place: Place | None = None) -> None:
        """The rest of a request, and its answer."""
        try:
            result = await rest
            if isinstance(result, Message):
                call.handled_ns = self._clock.monotonic_ns()
                await self._answer_in_slices(call, result)
            else:
                self._take(call, result, place)
        except _Handled:
            pass
        except Exception as failure:
            self._failed(call, failure)

    async def _serve_held(self, call: Call, rest: Coroutine[Any, Any, Result] | None) -> None:
        """The rest of a request, and then those of its connection that have come meanwhile."""
        connection = call.connection
        held = self._held[connection]
        pace = Pace(self.lane, connection.is_broker)
        try:
            while rest is not None:
                await self._finish(call, rest)
                rest = None
                while held and rest is None:
                    if connection.is_stalled:
                        connection.take_back(held)
                        held.clear()
                        break
                    call = held.popleft()
                    begun_ns = call.taken_ns = self._clock.monotonic_ns()
                    rest = self._serve(call)
                    if rest is None:
                        await pace.spend(_COST_OF_HELD + (self._clock.monotonic_ns() - begun_ns) // _NS_OF_ELEMENT)
        except asyncio.CancelledError:
            connection.close(f"{API[call.api_key].name} was given up")
            raise
        except Exception as failure:
            self._failed(call, failure)
        finally:
            del self._held[connection]

    def _run(self, call: Call, inner: Awaitable[Any], outer: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(outer)
        self._later[task] = call, inner
        task.add_done_callback(lambda task: self._later.pop(task))
        return task

    # Answers

    def _await(self, call: Call, result: Awaitable[Message | Later | None], place: Place | None = None) -> None:
        task = self._run(call, result, self._answer_later(call, result))
        if place is not None:
            place.share()
            task.add_done_callback(lambda _: self._leave(call, place))

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

    async def _answer_later(self, call: Call, result: Awaitable[Message | Later | None]) -> None:
        try:
            response = await result
            if isinstance(response, Message):
                await self._answer_in_slices(call, response)
            else:
                self._take(call, response)
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
        parts = encoding.first_step()
        while parts is None:
            await self._turn(call)
            if self._is_gone(call):
                return
            parts = encoding.step()
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
        kind = call.api_key * _MOST_VERSIONS + call.version
        is_follower = call.api_key == FETCH and call.connection.is_broker
        if is_follower:
            kind = -kind
        stages = self._stages.get(kind)
        if stages is None:
            name = API[call.api_key].name
            stages = self._stages[kind] = self._times.of(name, call.version, is_follower=is_follower)
        sent_ns = self._clock.monotonic_ns()
        stages.note((call.arrived_ns, call.taken_ns, call.handled_ns, call.answered_ns, sent_ns))
        if call.handled_ns - call.arrived_ns > self.slow_requests.slow_ns:
            self.slow_requests.tell(call, sent_ns)

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
