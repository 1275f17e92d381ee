"""What must hold between settings; each check yields sentences, so that all faults of a file are told together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidelog.config.values import invalid

_MIB = 1 << 20
_GROUP_BOUNDS = ("group.consumer", "group.share", "group.streams")


def cross_checks(values: Mapping[str, Any]) -> Iterator[str]:
    """`values` holds every broker setting with its type."""
    yield from _log(values)
    yield from _replication(values)
    yield from _network(values)
    yield from _groups(values)
    yield from _coordination(values)


def _log(values: Mapping[str, Any]) -> Iterator[str]:
    if not log_dirs(values):
        yield invalid("log.dirs", values["log.dirs"], "at least one directory is needed")
    if values["log.roll.ms"] is not None and values["log.roll.ms"] < 1:
        yield invalid("log.roll.ms", values["log.roll.ms"], "Value must be at least 1")
    if values["log.roll.jitter.ms"] is not None and values["log.roll.jitter.ms"] < 0:
        yield invalid("log.roll.jitter.ms", values["log.roll.jitter.ms"], "Value must be at least 0")
    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        if values[name] is not None and (values[name] == 0 or values[name] < -1):
            yield invalid(name, values[name], "must be -1, for no limit, or at least 1")
    if values["log.cleaner.enable"] and values["log.cleaner.threads"]:
        share = values["log.cleaner.dedupe.buffer.size"] // values["log.cleaner.threads"]
        if share <= _MIB:
            size = values["log.cleaner.dedupe.buffer.size"]
            yield invalid("log.cleaner.dedupe.buffer.size", size, "must be more than 1 MiB for each cleaner thread")


def _replication(values: Mapping[str, Any]) -> Iterator[str]:
    wait_ms = values["replica.fetch.wait.max.ms"]
    for name in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        if wait_ms > values[name]:
            yield invalid("replica.fetch.wait.max.ms", wait_ms, f"must not be above {name} ({values[name]})")
    if values["default.replication.factor"] < 1:
        yield invalid("default.replication.factor", values["default.replication.factor"], "Value must be at least 1")
    acks, replicas = values["offsets.commit.required.acks"], values["offsets.topic.replication.factor"]
    if not -1 <= acks <= replicas:
        yield invalid("offsets.commit.required.acks", acks, f"must be from -1 to the topic's replicas ({replicas})")


def _network(values: Mapping[str, Any]) -> Iterator[str]:
    queued, largest = values["queued.max.request.bytes"], values["socket.request.max.bytes"]
    if queued > 0 and queued < largest:
        yield invalid(
            "queued.max.request.bytes", queued, f"must be -1 or at least socket.request.max.bytes ({largest})"
        )
    idle_ms, delay_ms = values["connections.max.idle.ms"], values["connection.failed.authentication.delay.ms"]
    if idle_ms > 0 and delay_ms >= idle_ms:
        name = "connection.failed.authentication.delay.ms"
        yield invalid(name, delay_ms, f"must be below connections.max.idle.ms ({idle_ms})")
    text = values["max.connections.per.ip.overrides"]
    overrides = connection_overrides(text)
    if overrides is None:
        yield invalid("max.connections.per.ip.overrides", text, "must be HOST:COUNT, separated by commas")
    elif values["max.connections.per.ip"] == 0 and not overrides:
        yield invalid("max.connections.per.ip", 0, "can be 0 only with max.connections.per.ip.overrides")


def _groups(values: Mapping[str, Any]) -> Iterator[str]:
    if values["group.min.session.timeout.ms"] > values["group.max.session.timeout.ms"]:
        low = values["group.min.session.timeout.ms"]
        yield invalid("group.min.session.timeout.ms", low, "must not be above group.max.session.timeout.ms")
    for kind in _GROUP_BOUNDS:
        for what in ("heartbeat.interval.ms", "session.timeout.ms"):
            low, value, high = (values[f"{kind}{bound}.{what}"] for bound in (".min", "", ".max"))
            if not low <= value <= high:
                yield invalid(f"{kind}.{what}", value, f"must be within {kind}.min.{what} and {kind}.max.{what}")
        beat, timeout = values[f"{kind}.heartbeat.interval.ms"], values[f"{kind}.session.timeout.ms"]
        if beat >= timeout:
            yield invalid(f"{kind}.heartbeat.interval.ms", beat, f"must be below {kind}.session.timeout.ms ({timeout})")


def _coordination(values: Mapping[str, Any]) -> Iterator[str]:
    if values["tidelog.coordination"] == "zookeeper" and not values["zookeeper.connect"]:
        yield invalid("tidelog.coordination", "zookeeper", "needs zookeeper.connect")


def log_dirs(values: Mapping[str, Any]) -> tuple[str, ...]:
    """log.dirs, or log.dir where that is not set; doubles count once."""
    named = values["log.dirs"] if values["log.dirs"] is not None else values["log.dir"]
    return tuple(dict.fromkeys(part.strip() for part in named.split(",") if part.strip()))


def connection_overrides(text: str) -> dict[str, int] | None:
    """max.connections.per.ip.overrides as a table; None if it is not one."""
    found: dict[str, int] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        host, _, count = pair.rpartition(":")
        if not host.strip() or not count.strip().isdecimal():
            return None
        found[host.strip()] = int(count)
    return found
