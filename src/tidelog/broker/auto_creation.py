"""Topics that are asked for and not there are created, by the controller as all others.

Those of clients if auto.create.topics.enable says so; those of coordinators when the first of them is looked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.broker.said import Said
from tidelog.config.broker import BrokerConfig
from tidelog.controller.topics import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog.errors import ErrorCode, TidelogError, error_code
from tidelog.net.calling import Connection
from tidelog.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_log = logging.getLogger(__name__)

_VERSION = 7
_AS_THE_BROKER_SAYS = -1
_PATIENCE_S = 1.0
"""A client that waits for its Metadata has other topics too; it comes again for the ones that take longer."""


_IS_OR_WILL_BE_THERE = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT)


class AutoCreation:
    """One request for each topic at a time, however many clients ask for it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._under_way: dict[str, asyncio.Future[frozenset[str]]] = {}
        """Each gives the topics that could not be created."""
        self._said = Said()
        """Clients decide how often it is tried again."""

    async def create(self, topics: Sequence[str]) -> bool:
        """Begin with it, or join who has begun, for a moment. Whether it worked, the next Metadata tells; False if it
        is known that it did not."""
        new = [topic for topic in dict.fromkeys(topics) if topic not in self._under_way]
        if new:
            creating = asyncio.create_task(self._create(new))
            for topic in new:
                self._under_way[topic] = creating
            creating.add_done_callback(lambda _: [self._under_way.pop(topic) for topic in new])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                for topic in topics:
                    under_way = self._under_way.get(topic)
                    if under_way is not None and topic in await asyncio.shield(under_way):
                        return False
        return True

    async def _create(self, topics: Sequence[str]) -> frozenset[str]:
        broker = self._broker
        controller = broker.metadata.brokers.get(broker.metadata.controller_id)
        if controller is None:
            self._log(logging.INFO, ", ".join(topics), "no controller is known yet")
            return frozenset(topics)
        timeout_ms: int = broker.config["request.timeout.ms"]
        request = CreateTopicsRequest(
            topics=[_wanted(topic, broker.config) for topic in topics],
            timeout_ms=timeout_ms,
        )
        try:
            host, port = controller.endpoints[broker.inter_broker_listener]
            connection = await Connection.open(host, port, client_id=f"broker-{broker.id}-auto-creation")
            try:
                response = await connection.call(request, _VERSION, timeout_ms=timeout_ms)
            finally:
                connection.close()
        except (TidelogError, OSError, KeyError) as failure:
            self._log(logging.WARNING, ", ".join(topics), failure)
            return frozenset(topics)
        assert isinstance(response, CreateTopicsResponse)
        failed = [result for result in response.topics if result.error_code not in _IS_OR_WILL_BE_THERE]
        for result in failed:
            why = result.error_message or error_code(result.error_code)
            self._log(logging.WARNING, result.name or "", why)
        return frozenset(result.name or "" for result in failed)

    def _log(self, level: int, names: str, why: object) -> None:
        if self._said.is_news(f"{names}: {why}"):
            _log.log(level, "cannot create %s: %s", names, why)


def _wanted(topic: str, config: BrokerConfig) -> CreatableTopic:
    """As the broker says; coordinators' topics have settings of their own."""
    if topic == GROUP_OFFSETS_TOPIC:
        return _compacted(
            topic,
            config["offsets.topic.num.partitions"],
            config["offsets.topic.replication.factor"],
            {"segment.bytes": str(config["offsets.topic.segment.bytes"]), "compression.type": "producer"},
        )
    if topic == TRANSACTION_STATE_TOPIC:
        settings = {
            "segment.bytes": str(config["transaction.state.log.segment.bytes"]),
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config["transaction.state.log.min.isr"]),
            "unclean.leader.election.enable": "false",
        }
        partitions = config["transaction.state.log.num.partitions"]
        return _compacted(topic, partitions, config["transaction.state.log.replication.factor"], settings)
    return CreatableTopic(name=topic, num_partitions=_AS_THE_BROKER_SAYS, replication_factor=_AS_THE_BROKER_SAYS)


def _compacted(topic: str, partitions: int, replication_factor: int, settings: dict[str, str]) -> CreatableTopic:
    return CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[
            CreatableTopicConfig(name=name, value=value)
            for name, value in {"cleanup.policy": "compact", **settings}.items()
        ],
    )
