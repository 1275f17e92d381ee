"""What the server as a whole promises: limits, idle connections, workers, metrics, and the page that shows them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import struct
import weakref
from collections.abc import Callable

import pytest

from tests.kits.netkit import (
    PATIENCE_S,
    FakeRegion,
    LoopClock,
    Parking,
    Scene,
    announced,
    connection_limits,
    every_loop,
    framed,
    quiet,
    real_loops,
    request,
    scene,
    server_limits,
    simulated,
    until,
)
from tidelog.broker.metrics_http import Pages
from tidelog.broker.pacing import SlowLane
from tidelog.metrics import Metrics
from tidelog.net.channel import Call
from tidelog.net.share import LIGHT_EIGHTHS, STEP_BYTES

IDLE = server_limits(connections_max_idle_ms=600_000)


def closings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("closing")]


def fail(*_: object) -> None:
    """For what must not fail and does."""
    raise ArithmeticError


async def refused(made: Scene) -> None:
    """Hung up at once, or in the midst of connecting."""
    with contextlib.suppress(ConnectionError):
        assert await (await made.connect()).ended() == b""


@every_loop
async def test_max_connections_refuses_those_above_it_until_one_goes(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    async with scene(limits=server_limits(connections=connection_limits(max_connections=3))) as made:
        clients = [await made.connect() for _ in range(3)]
        for client in clients:
            await client.ask(request(1))
        await refused(made)
        assert ["max.connections = 3" in line for line in closings(caplog)] == [True]
        assert made.metric("tidelog_refused_connections_total") == 1
        clients[0].close()
        await until(lambda: made.server.admission.count == 2)
        assert await (await made.connect()).ask(request(2)) == request(2)
        assert await clients[1].ask(request(3)) == request(3)


@every_loop
async def test_max_connections_per_ip(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    async with scene(limits=server_limits(connections=connection_limits(max_connections_per_ip=1))) as made:
        first = await made.connect()
        await first.ask(request(1))
        await refused(made)
        assert "max.connections.per.ip = 1" in closings(caplog)[0]
        first.close()
        await until(lambda: made.server.admission.count == 0)
        assert await (await made.connect()).ask(request(2)) == request(2)


@every_loop
async def test_max_connections_per_ip_overrides_one_address():
    limits = connection_limits(
        max_connections_per_ip=0, max_connections_per_ip_overrides={"127.0.0.1": 1, "localhost": 1, "b1": 1}
    )
    async with scene(limits=server_limits(connections=limits)) as made:
        assert await (await made.connect()).ask(request(1)) == request(1)
        await refused(made)


@every_loop
async def test_refused_connections_are_not_counted_when_they_go():
    async with scene(limits=server_limits(connections=connection_limits(max_connections=1))) as made:
        kept = await made.connect()
        await kept.ask(request(1))
        for _ in range(5):
            await refused(made)
        assert made.server.admission.count == 1
        assert await kept.ask(request(2)) == request(2)


@simulated
async def test_a_silent_connection_is_closed_after_connections_max_idle_ms(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    loop = asyncio.get_running_loop()
    async with scene(limits=IDLE, clock=LoopClock()) as made:
        silent, busy = await made.connect(), await made.connect()
        await silent.ask(request(1))
        began = loop.time()
        while loop.time() < began + 599:
            await asyncio.sleep(100)
            assert await busy.ask(request(2)) == request(2)
        async with asyncio.timeout(10):
            while not silent.reader.at_eof() and silent.reader.exception() is None:
                await asyncio.sleep(0.5)
        assert 600 <= loop.time() - began < 602
        assert await busy.ask(request(3)) == request(3)
        assert ["connections.max.idle.ms" in line for line in closings(caplog)] == [True]


@simulated
async def test_a_client_that_announces_a_request_and_sends_no_more_is_closed():
    async with scene(limits=IDLE, clock=LoopClock()) as made:
        client = await made.connect()
        client.write(struct.pack(">i", 50_000_000) + b"x" * 100)
        await asyncio.sleep(605)
        assert made.server.admission.count == 0


@simulated
async def test_a_client_that_takes_no_answers_is_closed():
    def handle(call: Call) -> None:
        call.answer(announced(FakeRegion(10_000_000)))

    async with scene(handle, limits=IDLE, clock=LoopClock()) as made:
        client = await made.connect()
        client.send(request(1))
        await asyncio.sleep(590)
        assert made.server.admission.count == 1
        await asyncio.sleep(15)
        assert made.server.admission.count == 0


@simulated
async def test_a_request_parked_for_longer_than_any_client_waits_holds_no_connection():
    """Reading may have stopped for what it owes, so nothing else would show that the client has gone."""
    gone: list[bool] = []

    def park(call: Call) -> None:
        call.when_gone = lambda: gone.append(True)

    async with scene(park, limits=IDLE, clock=LoopClock()) as made:
        client = await made.connect()
        client.send(*(request(number) for number in range(300)))
        await asyncio.sleep(605)
        assert made.server.admission.count == 0
        assert len(gone) == 256


@simulated
async def test_a_slow_upload_is_not_idle():
    limits = server_limits(connections_max_idle_ms=600_000, request_read_timeout_ms=-1)
    async with scene(limits=limits, clock=LoopClock()) as made:
        client = await made.connect()
        payload = request(1, size=100_000)
        data = framed(payload)
        for start in range(0, len(data), 5_000):
            client.write(data[start : start + 5_000])
            await asyncio.sleep(150)
        assert await client.receive() == payload


@simulated
async def test_idle_connections_stay_without_a_limit():
    async with scene(limits=server_limits(connections_max_idle_ms=-1), clock=LoopClock()) as made:
        client = await made.connect()
        await client.ask(request(1))
        await asyncio.sleep(2000)
        assert await client.ask(request(2)) == request(2)


@every_loop
async def test_connections_are_dealt_to_the_workers_in_turn():
    async with scene(limits=server_limits(num_network_threads=3)) as made:
        for _ in range(7):
            await (await made.connect()).ask(request(1))
        name, listener = "kafka_server_socket_server_metrics_connection_count", made.calls[0].listener
        counts = [made.metric(f'{name}{{listener="{listener}",networkProcessor="{number}"}}') for number in range(3)]
        assert counts == [3, 2, 2]


@every_loop
async def test_the_queues_have_kafkas_names():
    parked: list[Call] = []
    async with scene(parked.append, capacity=4) as made:
        client = await made.connect()
        client.send(request(1))
        await until(lambda: bool(parked))
        lines = {line.split(" ")[0] for line in made.metrics.text().splitlines() if not line.startswith("#")}
        assert "kafka_network_requestchannel_requestqueuesize" in lines
        assert 'kafka_network_requestchannel_responsequeuesize{processor="0"}' in lines


@every_loop
async def test_several_listeners_tell_who_came_in_by_which():
    seen: list[str] = []

    def handle(call: Call) -> None:
        seen.append(call.listener)
        assert call.frame is not None
        call.answer([framed(call.frame)])

    async with scene(handle) as made:
        first = await made.connect()
        await first.ask(request(1))
        made.port = await made.server.listen("INTERNAL", "127.0.0.1", 0)
        second = await made.connect()
        await second.ask(request(2))
        await first.ask(request(3))
        assert seen == ["PLAINTEXT", "INTERNAL", "PLAINTEXT"]


@every_loop
async def test_after_stop_listening_old_connections_are_served_and_new_ones_refused():
    async with scene() as made:
        client = await made.connect()
        await client.ask(request(1))
        made.server.stop_listening()
        assert await client.ask(request(2)) == request(2)
        with pytest.raises(ConnectionError):
            await made.connect()


@every_loop
async def test_close_ends_all_connections_and_their_parked_requests():
    gone: list[bool] = []

    def park(call: Call) -> None:
        call.when_gone = lambda: gone.append(True)

    async with scene(park) as made:
        clients = [await made.connect() for _ in range(5)]
        for client in clients:
            client.send(request(1))
        await until(lambda: len(made.calls) == 5)
        await made.server.close()
        for client in clients:
            assert await client.ended() == b""
        assert len(gone) == 5


async def page(port: int, *pieces: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(60):
            return await reader.read(-1)
    except ConnectionError:
        return b"reset"
    finally:
        writer.close()


def pages_of(metrics: Metrics, why_not_ready: Callable[[], str] = lambda: "") -> Pages:
    async def prepare() -> None:
        """There is nobody to ask."""

    return Pages(metrics, SlowLane(), why_not_ready, prepare)


@every_loop
async def test_the_page_of_metrics():
    metrics = Metrics()
    metrics.counters("kafka_things_total", "Things.", "topic").of('a"b').add(3)
    why, pages = "", pages_of(metrics, lambda: why)
    port = await pages.listen("127.0.0.1", 0)
    answer = await page(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"text/plain; version=0.0.4" in head
    assert b"Content-Length: %d" % len(body) in head
    help_line, type_line = b"# HELP kafka_things_total Things.\n", b"# TYPE kafka_things_total counter\n"
    assert body == help_line + type_line + b'kafka_things_total{topic="a\\"b"} 3\n'
    assert (await page(port, b"GET /met", b"rics?x=1 HTTP/1.0\r\n", b"\r\n")).endswith(body)
    assert (await page(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
    secret = await page(port, b"GET /secret HTTP/1.1\r\n\r\n")
    assert secret.startswith(b"HTTP/1.1 404")
    assert secret.endswith(b"there are /metrics, /healthz and /readyz\n")
    for path in (b"/healthz", b"/readyz"):
        answer = await page(port, b"GET " + path + b" HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nok\n")
        answer = await page(port, b"HEAD " + path + b" HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\n")
    why = "it is too early"
    assert (await page(port, b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    answer = await page(port, b"GET /readyz HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert answer.endswith(b"\r\n\r\nit is too early\n")
    assert (await page(port, b"HEAD /readyz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 503")
    assert (await page(port, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
    assert (await page(port, b"\x00" * 20_000)) in (b"", b"reset")
    await pages.close()


@every_loop
async def test_the_page_says_so_when_a_gauge_cannot_be_read():
    metrics = Metrics()
    metrics.gauge("kafka_broken", "Nothing can be read.", lambda: 1 / 0)
    pages = pages_of(metrics)
    answer = await page(await pages.listen("127.0.0.1", 0), b"GET /metrics HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 503")
    await pages.close()


@every_loop
async def test_those_who_ask_while_the_page_is_made_get_the_same_page():
    metrics = Metrics()
    reads = 0

    def read() -> int:
        nonlocal reads
        reads += 1
        return reads

    may_end = asyncio.Event()

    async def prepare() -> None:
        await may_end.wait()

    metrics.gauge("tidelog_reads", "Times that it was read.", read)
    pages = Pages(metrics, SlowLane(), lambda: "", prepare)
    first, *others = [asyncio.ensure_future(pages.metrics()) for _ in range(20)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    may_end.set()
    made = await asyncio.gather(*others)
    assert {shown.splitlines()[-1] for shown in made} == {b"tidelog_reads 1"}
    assert (await pages.metrics()).endswith(b"tidelog_reads 2\n")
    await pages.close()


@every_loop
async def test_few_connections_are_kept_for_clients_that_ask_for_nothing():
    """They would take the file descriptors that the logs need."""
    pages = pages_of(Metrics())
    port = await pages.listen("127.0.0.1", 0)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(150)]
    answer = await page(port, b"GET /healthz HTTP/1.1\r\n\r\n")
    assert answer.endswith(b"\r\n\r\nok\n")
    async with asyncio.timeout(PATIENCE_S):
        for reader, _ in silent[:50]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
    newest_reader, newest = silent[-1]
    newest.write(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert (await newest_reader.read()).endswith(b"\r\n\r\nok\n")
    for _, writer in silent:
        writer.close()
    await pages.close()


@every_loop
async def test_what_comes_behind_a_request_is_not_kept():
    """The page may take a second to make. Gigabytes may come in it, which would be put together piece by piece."""
    may_end = asyncio.Event()

    async def prepare() -> None:
        await may_end.wait()

    pages = Pages(Metrics(), SlowLane(), lambda: "", prepare)
    port = await pages.listen("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")

    async def send_more() -> None:
        for _ in range(32):
            writer.write(b"x" * 1024 * 1024)
            await writer.drain()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(send_more(), 0.5)
    writer.transport.abort()
    may_end.set()
    await pages.close()


@real_loops
async def test_few_pages_are_held_for_clients_that_do_not_take_them():
    metrics = Metrics()
    metrics.series("tidelog_many", "Many.", ("n",), lambda: (((str(n) * 20,), n) for n in range(1, 60_000)))
    pages = pages_of(metrics)
    port = await pages.listen("127.0.0.1", 0)
    clients = []
    for _ in range(15):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await reader.readexactly(100)
        clients.append(writer)
    assert len(pages._untaken) == 10
    assert (await page(port, b"GET /metrics HTTP/1.1\r\n\r\n")).endswith(b" 59999\n")
    for writer in clients:
        writer.transport.abort()
    await until(lambda: not pages._untaken)
    await pages.close()


@simulated
async def test_a_client_of_the_page_that_says_nothing_is_closed():
    pages = pages_of(Metrics())
    assert await page(await pages.listen("127.0.0.1", 0), b"GET ") in (b"", b"reset")
    await pages.close()


@every_loop
async def test_many_clients_come_and_go():
    async with scene() as made:
        for _ in range(20):
            clients = [await made.connect() for _ in range(10)]
            for client in clients:
                client.send(request(1, size=20_000), request(2))
            for client in clients[::2]:
                client.writer.transport.abort()
            for client in clients[1::2]:
                assert await client.receive() == request(1, size=20_000)
                client.close()
        await until(lambda: made.server.admission.count == 0)
        assert await quiet(lambda: sum(len(worker.connections) for worker in made.server._workers), turns=3) == 0


@real_loops
@pytest.mark.parametrize("ending", ["the client goes", "a bad size", "half a request", "a stalled answer"])
async def test_a_connection_that_ended_is_freed_at_once(ending: str):
    """What it holds may be large, and the broker looks for cycles seldom."""

    def handle(call: Call) -> None:
        assert call.frame is not None
        call.answer(announced(FakeRegion(30_000_000)) if ending == "a stalled answer" else [framed(call.frame)])

    async with scene(handle) as made:
        client = await made.connect()
        client.send(request(1, size=20_000))
        await until(lambda: bool(made.calls))
        (theirs,) = (weakref.ref(call.connection) for call in made.calls)
        made.calls.clear()
        made.sent.clear()
        if ending == "a bad size":
            client.write(struct.pack(">i", -1))
        elif ending == "half a request":
            client.write(struct.pack(">i", 1_000_000) + bytes(100_000))
        await client.writer.drain()
        gc.disable()
        try:
            if ending != "a bad size":
                client.writer.transport.abort()
            await until(lambda: made.server.admission.count == 0)
            await until(lambda: theirs() is None)
        finally:
            gc.enable()


@every_loop
async def test_a_reason_is_one_line_whatever_a_client_called_things(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)

    def handle(call: Call) -> None:
        call.connection.close("no topic a\nINFO all is well\r\x1b[2J\x00" + "x" * 100_000)

    async with scene(handle) as made:
        client = await made.connect()
        client.send(request(1))
        assert await client.ended() == b""
        (line,) = closings(caplog)
        assert "no topic a INFO all is well" in line
        assert line.isprintable()
        assert len(line) < 1000


@every_loop
async def test_room_that_comes_back_is_dealt_out_without_recursion():
    """Each of very many connections is not read from, and has a size behind its request for which it is closed when it
    is: so each of them gives room back in the moment in which it gets some."""
    bound, count, few, light = 4 * STEP_BYTES, 300, 14_000, 0
    parking = Parking()
    async with scene(parking, limits=server_limits(queued_max_request_bytes=bound)) as made:
        holder, other = await made.connect(), await made.connect()
        holder.send(request(0, size=bound), *(request(1 + number, size=10_000) for number in range(60)))
        share = made.server.room.clients
        await until(lambda: len(share.paused) == 1)
        while share.held < bound + LIGHT_EIGHTHS * bound // 8:
            (await made.connect()).send(request(100 + light, size=few))
            light += 1
            await until(lambda: 99 + light in parking.calls)  # noqa: B023 - it is called before the next round
        bad = [await made.connect() for _ in range(count)]
        for number, client in enumerate(bad):
            client.write(framed(request(1000 + number)) + struct.pack(">i", -5))
        await until(lambda: len(share.paused) >= count + 1)
        parking.answer(0)
        for client in bad:
            await client.ended()
        await until(lambda: made.server.admission.count == 2 + light)
        other.send(request(500))
        await until(lambda: 500 in parking.calls)
        await until(lambda: made.server.room.held == 60 * 10_000 + light * few + 16)


@simulated
async def test_connections_are_looked_at_again_though_a_look_failed(monkeypatch: pytest.MonkeyPatch):
    async with scene(limits=IDLE, clock=LoopClock()) as made:
        client = await made.connect()
        await client.ask(request(1))
        failures: list[object] = []
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patched:
            loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
            patched.setattr(made.server.room, "in_the_way", fail)
            await asyncio.sleep(5)
        assert len(failures) >= 4
        assert all(isinstance(failure, ArithmeticError) for failure in failures)
        await asyncio.sleep(605)
        assert made.server.admission.count == 0


@every_loop
async def test_a_connection_is_cut_off_though_something_fails_when_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """What is to be told of its end hears of it, and it is not counted any more."""
    parking, told = Parking(), []
    async with scene(parking) as made:
        client, other = await made.connect(), await made.connect()
        client.send(request(1), request(2))
        await until(lambda: len(parking.calls) == 2)
        parking.calls[1].when_gone = fail
        parking.calls[2].when_gone = lambda: told.append(2)
        parking.calls[1].connection.close("enough")
        assert (await client.ended(), told) == (b"", [2])
        assert "ArithmeticError" in caplog.text
        other.send(request(3))
        await until(lambda: 3 in parking.calls)
        theirs = parking.calls[3].connection
        with monkeypatch.context() as patched:
            patched.setattr(made.server.room.clients, "forget", fail)
            with pytest.raises(ArithmeticError):
                theirs.close("enough")
        assert await other.ended() == b""
        await until(lambda: made.server.admission.count == 0)
        assert made.metric("kafka_network_socketserver_memorypoolused") == 0
