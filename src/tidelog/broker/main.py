"""The broker process: from a configuration to a running broker, until it is told to stop or cannot go on."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
from collections.abc import Callable

import uvloop

from tidelog import __version__
from tidelog.broker.broker import Broker
from tidelog.broker.cannot_listen import CannotListenError, told
from tidelog.broker.first_contact import tell_of_waiting
from tidelog.config.broker import BrokerConfig
from tidelog.coordination.port import Coordination
from tidelog.errors import TidelogError
from tidelog.host import garbage, listening, memory
from tidelog.host.limits import raise_open_file_limit
from tidelog.host.machine import RealPorts
from tidelog.host.process_metrics import add_process_metrics
from tidelog.ports import Clock

_log = logging.getLogger(__name__)


def run(config: BrokerConfig, on_ready: Callable[[Broker], None] = lambda broker: None) -> int:
    """The exit status: 0 after a clean stop, 1 if the broker could not start or had to give up."""
    raise_open_file_limit()
    memory.keep_freed()
    _tell_start(config)
    for warning in config.warnings:
        _log.warning("%s", warning)
    warn_of_exposure(config)
    return uvloop.run(_run(config, on_ready))


def _tell_start(config: BrokerConfig) -> None:
    _log.info(
        "tidelog %s starts as broker %d: process %d, Python %s, listeners %s%s, log directories %s, "
        "the cluster agrees in %s",
        __version__,
        config.broker_id,
        os.getpid(),
        platform.python_version(),
        ", ".join(map(str, config.listeners)),
        _as_advertised(config),
        ", ".join(config.log_dirs),
        _where_it_agrees(config),
    )


def _as_advertised(config: BrokerConfig) -> str:
    """Nothing if a port is not known yet: the line that says that the broker is ready has the real ones."""
    if any(listener.port == 0 for listener in config.advertised_listeners):
        return ""
    return f", advertised as {', '.join(map(str, config.advertised_listeners))}"


def _where_it_agrees(config: BrokerConfig) -> str:
    """The store, without what its address may have of passwords: ZooKeeper's has none."""
    kind = config["tidelog.coordination"]
    if kind == "embedded":
        return f"the directory {config.coordination_dir}"
    return f"ZooKeeper {config['zookeeper.connect']}" if kind == "zookeeper" else "its own memory"


def warn_of_exposure(config: BrokerConfig) -> None:
    """Once, at the start: there is no authentication, so the network has to keep strangers away."""
    exposed = [str(listener) for listener in config.listeners if listener.is_exposed]
    if exposed:
        _log.warning(
            "%s: other machines can connect without TLS and without saying who they are. Whoever does can read, write "
            "and delete everything and can pretend to be a broker: use such a listener in a trusted network only",
            ", ".join(exposed),
        )


async def _run(config: BrokerConfig, on_ready: Callable[[Broker], None]) -> int:
    loop = asyncio.get_running_loop()
    told_to_stop: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _stop, told_to_stop, number.name)
    ports = RealPorts(num_io_threads=config["num.io.threads"])
    broker = Broker(config, ports, open_coordination(config, ports.clock))
    add_process_metrics(broker.metrics)
    starting = asyncio.create_task(_start(broker, on_ready, ports.clock.monotonic_ns()))
    collecting = asyncio.create_task(garbage.collect_now_and_then())
    try:
        await _first_of(starting, told_to_stop, broker.failed)
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            await _first_of(told_to_stop, broker.failed)
        if broker.failed.done():
            return 1
        if told_to_stop.done():
            _log.info("broker %d stops: it got %s", broker.id, told_to_stop.result())
        return 0 if told_to_stop.done() else 1
    finally:
        collecting.cancel()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await _stop_broker(broker)
        if not starting.cancelled() and (failure := starting.exception()) is not None:
            _report(failure)
        ports.close()


async def _start(broker: Broker, on_ready: Callable[[Broker], None], started_ns: int) -> None:
    waiting = asyncio.create_task(tell_of_waiting(broker.static_config, lambda: bool(broker.cluster_id)))
    try:
        await broker.start()
    finally:
        waiting.cancel()
    garbage.settle()
    _log.info(
        "broker %d of cluster %s is ready after %.1f s: %s",
        broker.id,
        broker.cluster_id,
        (broker.clock.monotonic_ns() - started_ns) / 1e9,
        ", ".join(f"{name} port {port}" for name, port in broker.ports_bound.items()),
    )
    on_ready(broker)


async def _stop_broker(broker: Broker) -> None:
    begun_ns = broker.clock.monotonic_ns()
    try:
        await broker.stop()
    except TidelogError as failure:
        _log.error("the stop of broker %d was not clean: %s", broker.id, failure)
    else:
        _log.info("broker %d has stopped, after %.1f s", broker.id, (broker.clock.monotonic_ns() - begun_ns) / 1e9)


def _report(failure: BaseException) -> None:
    if isinstance(failure, CannotListenError):
        _log.critical("cannot start: %s", told(failure, listening.listener))
    elif isinstance(failure, TidelogError | OSError):
        _log.critical("cannot start: %s", failure)
    else:
        _log.critical("cannot start", exc_info=failure)


def _stop(told: asyncio.Future[str], name: str) -> None:
    if not told.done():
        told.set_result(name)


async def _first_of(*futures: asyncio.Future[str] | asyncio.Task[None]) -> None:
    """Until one of them is done."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not done.done():
            done.set_result(None)

    for future in futures:
        future.add_done_callback(wake)
    await done


def open_coordination(config: BrokerConfig, clock: Clock) -> Coordination:
    """The store that `tidelog.coordination` names."""
    kind = config["tidelog.coordination"]
    if kind == "memory":
        from tidelog.coordination.memory import MemoryCoordination

        return MemoryCoordination(clock)
    if kind == "embedded":
        from tidelog.coordination.embedded import EmbeddedCoordination

        os.makedirs(config.coordination_dir, exist_ok=True)
        return EmbeddedCoordination(config.coordination_dir, clock)
    from tidelog.coordination.zookeeper import ZooKeeperCoordination

    return ZooKeeperCoordination(
        config["zookeeper.connect"],
        clock,
        connection_timeout_ms=config["zookeeper.connection.timeout.ms"],
        max_in_flight=config["zookeeper.max.in.flight.requests"],
    )
