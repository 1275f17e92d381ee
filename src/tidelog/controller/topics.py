"""What may be asked of topics: their names, and the plans to create them, to add partitions, to delete them.

A plan is made from the image and is either all right or a TopicError with the code that a client is told. To carry it
out is to write one node; what follows from that node is the controller's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidelog.controller.image import Assignment, Image, Topic
from tidelog.controller.placement import InvalidPartitionsError, InvalidReplicationFactorError, place, place_more
from tidelog.errors import ErrorCode, TidelogError
from tidelog.ports import Random
from tidelog.types import BrokerId
from tidelog.wire import ZERO_UUID, uuid_text

MAX_NAME_LENGTH = 249
_MOST_KEPT = 32_767
"""Characters of names that no topic can have, in one request: one name of any length is kept as it is."""
"""A directory is named by the topic and the partition, and file systems end at 255."""
MAX_PARTITIONS_PER_REQUEST = 10_000
"""Kafka's limit: what follows from one request is done in one go."""
UNSET = -1
"""As a number of partitions or a replication factor: the broker's default."""

GROUP_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, "__share_group_state"})
"""Made by the brokers on need. Clients may create and delete them too, as in Kafka."""
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
"""KRaft's own log: nobody may create a topic of this name."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_RESERVED_IDS = (ZERO_UUID, bytes(15) + b"\x01")


class TopicError(TidelogError):
    """A request about a topic that cannot be granted."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class NewTopic(NamedTuple):
    """A topic as a client asks for it."""

    name: str
    partitions: int = UNSET
    replication_factor: int = UNSET
    assignments: Sequence[tuple[int, Sequence[BrokerId]]] = ()
    """The client's own placement, by partition; then neither number may be set."""
    configs: Sequence[tuple[str, str | None]] = ()

    def partition_count(self, defaults: Defaults) -> int:
        if self.assignments:
            return len(self.assignments)
        return defaults.partitions if self.partitions == UNSET else self.partitions


class Defaults(NamedTuple):
    partitions: int
    """num.partitions"""
    replication_factor: int
    """default.replication.factor"""


class TopicPlan(NamedTuple):
    """A topic as it will be."""

    name: str
    topic_id: bytes
    assignments: dict[int, Assignment]
    configs: dict[str, str]


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS


def validate_name(name: str) -> None:
    """INVALID_TOPIC_EXCEPTION unless Kafka would take it."""
    if not name:
        fault = "it is empty"
    elif name in (".", ".."):
        fault = f"{name!r} is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        fault = f"it has {len(name)} characters, {MAX_NAME_LENGTH} are allowed"
    elif not _LEGAL.fullmatch(name):
        fault = f"{name!r} has characters other than ASCII letters and digits, '.', '_' and '-'"
    else:
        return
    raise TopicError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {fault}.")


def is_valid_name(name: str) -> bool:
    try:
        validate_name(name)
    except TopicError:
        return False
    return True


def cut_name(name: str) -> str:
    """The name as it is kept for an answer that may have to wait. What is cut can be told from the name of a topic."""
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "\N{HORIZONTAL ELLIPSIS}"


def kept_names(names: Iterable[str]) -> Callable[[str], str]:
    """How an answer that may have to wait keeps the names of its request.

    Clients look for the very name that they have sent, so a name is kept as it is, unless there are so many long ones
    that they would take much memory.
    """
    too_long = sum(len(name) for name in names if len(name) > MAX_NAME_LENGTH)
    return cut_name if too_long > _MOST_KEPT else _as_it_is


def _as_it_is(name: str) -> str:
    return name


def colliding(name: str, names: Sequence[str]) -> str | None:
    """The topic whose metrics would have the same name, since '.' and '_' are one there."""
    if "." not in name and "_" not in name:
        return None
    unified = name.replace(".", "_")
    return next((other for other in names if other.replace(".", "_") == unified), None)


def new_topic_id(random: Random) -> bytes:
    """A random UUID that is not reserved, and that does not look like an option on a command line."""
    while True:
        drawn = bytearray(random.randbytes(16))
        drawn[6] = drawn[6] & 0x0F | 0x40
        drawn[8] = drawn[8] & 0x3F | 0x80
        topic_id = bytes(drawn)
        if topic_id not in _RESERVED_IDS and not uuid_text(topic_id).startswith("-"):
            return topic_id


def plan_creation(
    image: Image,
    new: NewTopic,
    defaults: Defaults,
    random: Random,
    validate_config: Callable[[Mapping[str, str]], None],
) -> TopicPlan:
    """TopicError, or what `validate_config` raises."""
    _check_name_is_free(image, new.name)
    nulls = [name for name, value in new.configs if value is None]
    if nulls:
        raise TopicError(ErrorCode.INVALID_CONFIG, f"These topic configs have no value: {', '.join(nulls)}.")
    configs = {name: value for name, value in new.configs if value is not None}
    replicas = _given(image, new) if new.assignments else _placed(image, new, defaults, random)
    validate_config(configs)
    assignments = {index: Assignment(tuple(replicas[index])) for index in sorted(replicas)}
    return TopicPlan(new.name, new_topic_id(random), assignments, configs)


def plan_more_partitions(
    image: Image, name: str, count: int, assignments: Sequence[Sequence[BrokerId]] | None
) -> dict[int, Assignment]:
    """The topic's whole assignment, grown to `count` partitions."""
    topic = existing(image, name)
    check_readable(topic)
    if any(assignment.is_being_reassigned for assignment in topic.assignments.values()):
        raise TopicError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"Partitions of topic '{name}' are being reassigned.")
    now = len(topic.assignments)
    if count <= now:
        raise TopicError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{name}' has {now} partition(s) and can only grow; {count} is not an increase.",
        )
    first = topic.assignments[0].replicas
    if assignments is None:
        try:
            more: Mapping[int, Sequence[BrokerId]] = place_more(_racks(image), first, now, count - now)
        except InvalidReplicationFactorError as failure:
            raise TopicError(ErrorCode.INVALID_REPLICATION_FACTOR, _sentence(failure)) from failure
    else:
        if len(assignments) != count - now:
            raise TopicError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{count - now} partition(s) are to be added, but {len(assignments)} assignment(s) are given.",
            )
        more = dict(enumerate(assignments, start=now))
        for index, replicas in more.items():
            _check_replicas(image, index, replicas, len(first))
    return topic.assignments | {index: Assignment(tuple(replicas)) for index, replicas in more.items()}


def check_partition_count(counts: Iterable[int]) -> None:
    """POLICY_VIOLATION if a request asks for too many new partitions in all."""
    asked = sum(count for count in counts if count > 0)
    if asked > MAX_PARTITIONS_PER_REQUEST:
        raise TopicError(
            ErrorCode.POLICY_VIOLATION,
            f"{asked} new partitions are too many for one request, {MAX_PARTITIONS_PER_REQUEST} are allowed.",
        )


def existing(image: Image, name: str) -> Topic:
    """The topic; one that is being deleted is as good as gone."""
    topic = image.topics.get(name)
    if topic is None or name in image.deleting:
        raise TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
    return topic


def check_readable(topic: Topic, index: int | None = None) -> None:
    """Nodes that cannot be read are not written: who mends them must find what was there. None: of the topic alone."""
    fault = topic.fault if index is None else topic.fault_of(index)
    if fault is not None:
        raise TopicError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"Topic '{topic.name}' cannot be changed until a node is mended: {fault}."
        )


def _check_name_is_free(image: Image, name: str) -> None:
    if name == CLUSTER_METADATA_TOPIC:
        raise TopicError(ErrorCode.INVALID_REQUEST, f"A topic named {name} must not be created.")
    validate_name(name)
    if name in image.deleting:
        raise TopicError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
    if name in image.topics:
        raise TopicError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = colliding(name, list(image.topics))
    if other is not None:
        raise TopicError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with topic '{other}': '.' and '_' are alike."
        )


def _placed(image: Image, new: NewTopic, defaults: Defaults, random: Random) -> Mapping[int, Sequence[BrokerId]]:
    replication_factor = defaults.replication_factor if new.replication_factor == UNSET else new.replication_factor
    try:
        return place(_racks(image), new.partition_count(defaults), replication_factor, random)
    except (InvalidPartitionsError, InvalidReplicationFactorError) as failure:
        raise TopicError(failure.code, _sentence(failure)) from failure


def _given(image: Image, new: NewTopic) -> Mapping[int, Sequence[BrokerId]]:
    if new.partitions != UNSET or new.replication_factor != UNSET:
        raise TopicError(
            ErrorCode.INVALID_REQUEST,
            "With an assignment of replicas, the number of partitions and the replication factor must be -1.",
        )
    replicas = dict(new.assignments)
    if len(replicas) != len(new.assignments):
        raise TopicError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned more than once.")
    factor = len(new.assignments[0][1])
    for index, brokers in sorted(replicas.items()):
        _check_replicas(image, index, brokers, factor)
    if sorted(replicas) != list(range(len(replicas))):
        raise TopicError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be numbered 0, 1, 2 without a gap.")
    return replicas


def _check_replicas(image: Image, index: int, replicas: Sequence[BrokerId], replication_factor: int) -> None:
    unknown = [broker for broker in replicas if broker not in image.brokers]
    if not replicas:
        fault = "is assigned to no broker"
    elif unknown:
        fault = f"is assigned to broker {unknown[0]}, which is not alive"
    elif len(set(replicas)) != len(replicas):
        fault = "is assigned to a broker more than once"
    elif len(replicas) != replication_factor:
        fault = f"has {len(replicas)} replica(s), others have {replication_factor}"
    else:
        return
    raise TopicError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partition {index} {fault}.")


def _racks(image: Image) -> dict[BrokerId, str | None]:
    return {broker.id: broker.rack for broker in image.brokers.values()}


def _sentence(failure: TidelogError) -> str:
    text = str(failure)
    return f"{text[:1].upper()}{text[1:]}."
