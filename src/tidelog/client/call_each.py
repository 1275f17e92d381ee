"""One request about many things, of which some brokers have some each; what failed is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tidelog.client.cluster import Cluster
from tidelog.client.errors import BrokerError
from tidelog.errors import ErrorCode, TidelogError, error_code
from tidelog.net.calling import ConnectionClosedError
from tidelog.types import BrokerId
from tidelog.wire.schema import Message
from tidelog.wire.versions import Versions

K = TypeVar("K")
T = TypeVar("T")


async def call_each(
    cluster: Cluster,
    keys: Sequence[K],
    whose: Callable[[Sequence[K]], Awaitable[Mapping[K, BrokerId]]],
    build: Callable[[Sequence[K]], Message],
    read: Callable[[Any], Iterable[tuple[K, int, T]]],
    about: str,
    about_one: Callable[[K], str],
    *,
    unreached: Callable[[ConnectionClosedError, Sequence[K]], TidelogError] = lambda failure, keys: failure,
    versions: Versions | None = None,
    topics: Iterable[str] = (),
    timeout_ms: float | None = None,
) -> dict[K, T]:
    """One result per key, in the order given. With a timeout of 0 nothing is tried again.

    `whose` tells which broker to ask about each key, `build` makes the request for some keys, and `read` yields (key,
    error code, result) of its response. An error that is worth another try is tried again, after `whose` was asked anew
    and metadata of the topics was learnt where it may be old; any other is raised. `about_one` names a key in errors,
    and `unreached` makes the error of a broker that closed its connection.
    """
    results: dict[K, T] = {}

    async def ask(broker: BrokerId, of_broker: list[K]) -> list[TidelogError]:
        try:
            response = await cluster.call(build(of_broker), to=broker, versions=versions)
        except ConnectionClosedError as failure:
            return [unreached(failure, of_broker)]
        except TidelogError as failure:
            return [failure]
        failures: list[TidelogError] = []
        for key, code, result in read(response):
            if code:
                failures.append(BrokerError(error_code(code), about_one(key)))
            else:
                results[key] = result
        return failures

    async def attempt() -> None:
        by_broker: dict[BrokerId, list[K]] = {}
        for key, broker in (await whose([key for key in keys if key not in results])).items():
            by_broker.setdefault(broker, []).append(key)
        rounds = await asyncio.gather(*(ask(broker, of_broker) for broker, of_broker in by_broker.items()))
        failures = [failure for failures in rounds for failure in failures]
        # What cannot be mended by trying again is told first.
        failures.sort(key=lambda failure: failure.code.retriable)
        if failures:
            raise failures[0]
        lacking = next((key for key in keys if key not in results), None)
        if lacking is not None:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, about_one(lacking), "the answer lacks it")

    await cluster.retrying(attempt, about, topics=topics, timeout_ms=timeout_ms)
    return {key: results[key] for key in keys}
