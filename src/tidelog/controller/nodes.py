"""The nodes through which a cluster agrees: their paths and what is in them, as Kafka 3.9 writes them to ZooKeeper.

Keys are written in the order Kafka writes them, so that our nodes and its are the same bytes. What is read may have any
order and the keys of newer versions; a node that is not what its path promises is a BadNodeError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from tidelog.controller.image import Assignment, Endpoint, PartitionState
from tidelog.errors import TidelogError
from tidelog.types import NO_EPOCH, BrokerId, Epoch, ProducerId, TopicPartition
from tidelog.wire import ZERO_UUID, parse_uuid, uuid_text

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
BROKER_EPOCHS = "/brokers/epochs"
"""Kafka has no such node. It keeps, for each broker, the last epoch that the broker's log directories have noted."""
TOPICS = "/brokers/topics"
DELETE_TOPICS = "/admin/delete_topics"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "/config/changes/config_change_"
ISR_CHANGE_PREFIX = "/isr_change_notification/isr_change_"
LOG_DIR_EVENT_PREFIX = "/log_dir_event_notification/log_dir_event_"
CLUSTER_ID = "/cluster/id"
FEATURE = "/feature"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"

CONFIG_TYPES = ("topics", "clients", "users", "brokers", "ips", "client-metrics")

PERSISTENT_PATHS = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE,
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
    *(f"{CONFIG}/{kind}" for kind in CONFIG_TYPES if kind != "client-metrics"),
)
"""What a broker makes sure of at its start, before it registers."""

EVERY_EPOCH = (1 << 63) - 1

_LOG_DIR_FAILURE = 1
_FAILED_DIRECTORY = "failed_log_dir"

T = TypeVar("T")


class BadNodeError(TidelogError):
    """The data of a node is not what belongs there. The message names the path."""


class Registration(NamedTuple):
    """What a broker says of itself in its ephemeral node."""

    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    jmx_port: int = -1
    intact_since: Epoch = NO_EPOCH
    """The broker epoch since which its log directories have lost nothing; NO_EPOCH: the one of this registration."""
    last_epoch: Epoch = NO_EPOCH
    """The last broker epoch that its log directories noted; NO_EPOCH: there is none; EVERY_EPOCH: they missed none."""
    has_failed_directory: bool = False
    """One of its log directories cannot be used, so some of its replicas may not be there."""


class TopicNode(NamedTuple):
    topic_id: bytes
    """ZERO_UUID if the topic is older than topic ids."""
    assignments: dict[int, Assignment]


class ProducerIdBlock(NamedTuple):
    """Producer ids first..last, both included, that one broker may give out (S13.1)."""

    broker_id: BrokerId
    first: ProducerId
    last: ProducerId


# Paths


def broker_path(broker_id: BrokerId) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_epoch_path(broker_id: BrokerId) -> str:
    return f"{BROKER_EPOCHS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(partition: TopicPartition) -> str:
    return f"{TOPICS}/{partition.topic}/partitions/{partition.partition}"


def state_path(partition: TopicPartition) -> str:
    return f"{partition_path(partition)}/state"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def config_path(kind: str, name: str) -> str:
    """`kind` is one of CONFIG_TYPES; the default of a kind is named `<default>`."""
    return f"{CONFIG}/{kind}/{name}"


# Data


def encode_controller(broker_id: BrokerId, timestamp_ms: int) -> bytes:
    return _json({"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> BrokerId:
    return _integer(_object(CONTROLLER, data), "brokerid", CONTROLLER)


def encode_controller_epoch(epoch: Epoch) -> bytes:
    return str(epoch).encode("ascii")


def decode_controller_epoch(data: bytes) -> Epoch:
    try:
        return int(data)
    except ValueError as failure:
        raise BadNodeError(f"{CONTROLLER_EPOCH} should hold a number, not {data!r}") from failure


def encode_broker_epoch(epoch: Epoch) -> bytes:
    return str(epoch).encode("ascii")


def decode_broker_epoch(broker_id: BrokerId, data: bytes) -> Epoch:
    """NO_EPOCH if none was written yet."""
    try:
        return int(data) if data else NO_EPOCH
    except ValueError as failure:
        raise BadNodeError(f"{broker_epoch_path(broker_id)} should hold a number, not {data!r}") from failure


def encode_broker(registration: Registration, timestamp_ms: int) -> bytes:
    """`host` and `port`, which only old clients read, are those of the first listener without encryption."""
    plain = next((end for end in registration.endpoints if end.security_protocol == "PLAINTEXT"), None)
    fields: dict[str, Any] = {
        "features": {},
        "listener_security_protocol_map": {end.listener: end.security_protocol for end in registration.endpoints},
        "endpoints": [_connection_string(end) for end in registration.endpoints],
    }
    if registration.rack is not None:
        fields["rack"] = registration.rack
    fields |= {
        "jmx_port": registration.jmx_port,
        "port": -1 if plain is None else plain.port,
        "host": None if plain is None else plain.host,
        "version": 5,
        "timestamp": str(timestamp_ms),
    }
    if registration.intact_since >= 0:
        fields |= {"intact_since": registration.intact_since, "last_epoch": registration.last_epoch}
    if registration.has_failed_directory:
        fields[_FAILED_DIRECTORY] = True
    return _json(fields)


def with_failed_directory(data: bytes) -> bytes:
    """A broker's own node, which says everything else as before."""
    return _json(json.loads(data) | {_FAILED_DIRECTORY: True})


def decode_broker(broker_id: BrokerId, data: bytes) -> Registration:
    """Of version 2 or newer; before version 4 a listener was named by its security protocol."""
    path = broker_path(broker_id)
    fields = _object(path, data)
    protocols = _typed(fields, "listener_security_protocol_map", dict, path, {})
    endpoints = tuple(
        _endpoint(text, protocols, path) for text in _typed(fields, "endpoints", list, path, required=True)
    )
    return Registration(
        endpoints,
        fields.get("rack"),
        _typed(fields, "jmx_port", int, path, -1),
        _typed(fields, "intact_since", int, path, NO_EPOCH),
        _typed(fields, "last_epoch", int, path, NO_EPOCH),
        _typed(fields, _FAILED_DIRECTORY, bool, path, False),
    )


def encode_topic(topic_id: bytes, assignments: Mapping[int, Assignment]) -> bytes:
    """Without a topic id if it is ZERO_UUID, as before Kafka 2.8."""
    fields: dict[str, Any] = {"partitions": {str(index): list(a.replicas) for index, a in sorted(assignments.items())}}
    if topic_id != ZERO_UUID:
        fields["topic_id"] = uuid_text(topic_id)
    fields |= {
        "adding_replicas": {str(index): list(a.adding) for index, a in sorted(assignments.items()) if a.adding},
        "removing_replicas": {str(index): list(a.removing) for index, a in sorted(assignments.items()) if a.removing},
        "version": 3,
    }
    return _json(fields)


def decode_topic(topic: str, data: bytes) -> TopicNode:
    path = topic_path(topic)
    fields = _object(path, data)
    replicas = _typed(fields, "partitions", dict, path, required=True)
    adding = _typed(fields, "adding_replicas", dict, path, {})
    removing = _typed(fields, "removing_replicas", dict, path, {})
    try:
        topic_id = parse_uuid(fields["topic_id"]) if fields.get("topic_id") else ZERO_UUID
        assignments = {
            int(index): Assignment(
                tuple(map(int, replicas[index])),
                tuple(map(int, adding.get(index, ()))),
                tuple(map(int, removing.get(index, ()))),
            )
            for index in sorted(replicas, key=int)
        }
    except (TypeError, ValueError) as failure:
        raise BadNodeError(f"{path} holds no assignment: {failure}") from failure
    return TopicNode(topic_id, assignments)


def encode_state(state: PartitionState) -> bytes:
    fields: dict[str, Any] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
        "isr_epochs": [state.lives[member] for member in state.isr],
    }
    if state.elr:
        fields |= {"elr": list(state.elr), "elr_epochs": [state.lives[member] for member in state.elr]}
    if state.leader_recovery_state:
        fields["leader_recovery_state"] = state.leader_recovery_state
    return _json(fields)


def decode_state(partition: TopicPartition, data: bytes, version: int, modified_id: int) -> PartitionState:
    """One without epochs, such as Kafka writes, is taken to know of every life that began before it was written."""
    path = state_path(partition)
    fields = _object(path, data)
    isr = tuple(_typed(fields, "isr", list, path, required=True))
    epochs = _typed(fields, "isr_epochs", list, path, [modified_id] * len(isr))
    elr = tuple(_typed(fields, "elr", list, path, []))
    elr_epochs = _typed(fields, "elr_epochs", list, path, [NO_EPOCH] * len(elr))
    return PartitionState(
        leader=_integer(fields, "leader", path),
        leader_epoch=_integer(fields, "leader_epoch", path),
        isr=isr,
        controller_epoch=_integer(fields, "controller_epoch", path),
        version=version,
        lives=dict(zip((*isr, *elr), (*epochs, *elr_epochs), strict=False)),
        leader_recovery_state=_typed(fields, "leader_recovery_state", int, path, 0),
        elr=elr,
    )


def encode_config(config: Mapping[str, str]) -> bytes:
    return _json({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """No overrides at all if the node is empty."""
    if not data:
        return {}
    return {str(name): str(value) for name, value in _typed(_object(path, data), "config", dict, path, {}).items()}


def encode_config_change(entity_path: str) -> bytes:
    """`entity_path` is the kind and the name: `topics/orders`."""
    return _json({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes) -> str:
    return str(_typed(_object(path, data), "entity_path", str, path, required=True))


def encode_isr_change(partitions: Iterable[TopicPartition]) -> bytes:
    changed = [{"topic": partition.topic, "partition": partition.partition} for partition in partitions]
    return _json({"version": 1, "partitions": changed})


def decode_isr_change(path: str, data: bytes) -> list[TopicPartition]:
    partitions = _typed(_object(path, data), "partitions", list, path, required=True)
    try:
        return [TopicPartition(str(entry["topic"]), int(entry["partition"])) for entry in partitions]
    except (KeyError, TypeError, ValueError) as failure:
        raise BadNodeError(f"{path} names no partitions: {failure}") from failure


def encode_log_dir_event(broker_id: BrokerId) -> bytes:
    return _json({"version": 1, "broker": broker_id, "event": _LOG_DIR_FAILURE})


def decode_log_dir_event(path: str, data: bytes) -> BrokerId:
    return _integer(_object(path, data), "broker", path)


def encode_cluster_id(cluster_id: str) -> bytes:
    return _json({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return str(_typed(_object(CLUSTER_ID, data), "id", str, CLUSTER_ID, required=True))


def encode_feature(features: Mapping[str, int]) -> bytes:
    """Finalized features, enabled, in the form of version 2."""
    levels = {name: {"max_version_level": level} for name, level in features.items()}
    return _json({"features": levels, "version": 2, "status": 1})


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    return _json(
        {
            "version": 1,
            "broker": block.broker_id,
            "block_start": str(block.first),
            "block_end": str(block.last),
        }
    )


def decode_producer_id_block(data: bytes) -> ProducerIdBlock:
    fields = _object(PRODUCER_ID_BLOCK, data)
    try:
        return ProducerIdBlock(int(fields["broker"]), int(fields["block_start"]), int(fields["block_end"]))
    except (KeyError, TypeError, ValueError) as failure:
        raise BadNodeError(f"{PRODUCER_ID_BLOCK} holds no block: {failure}") from failure


# Pieces


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _object(path: str, data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except ValueError as failure:
        raise BadNodeError(f"{path} is not JSON: {failure}") from failure
    if not isinstance(fields, dict):
        raise BadNodeError(f"{path} should hold a JSON object, not {data!r}")
    return fields


def _typed(
    fields: Mapping[str, Any], key: str, kind: type[T], path: str, default: T | None = None, required: bool = False
) -> T:
    value = fields.get(key)
    if value is None and not required and default is not None:
        return default
    if not isinstance(value, kind):
        raise BadNodeError(f"{path} should have {key!r} as a JSON {kind.__name__}, not {value!r}")
    return value


def _integer(fields: Mapping[str, Any], key: str, path: str) -> int:
    return _typed(fields, key, int, path, required=True)


def _connection_string(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.listener}://{host}:{endpoint.port}"


def _endpoint(text: Any, protocols: Mapping[str, str], path: str) -> Endpoint:
    listener, _, address = str(text).partition("://")
    host, _, port = address.rpartition(":")
    if not listener or not port.lstrip("-").isdigit():
        raise BadNodeError(f"{path} has {text!r} as an endpoint; it should look like PLAINTEXT://host:9092")
    return Endpoint(listener, host.removeprefix("[").removesuffix("]"), int(port), protocols.get(listener, listener))
