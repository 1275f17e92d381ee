"""Whose data this is: meta.properties, partition.metadata, and the note of a clean shutdown.

The first two keep a broker from opening a directory, or a partition, that belongs to another one of the same name.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass

from tidelog.config.errors import ConfigError
from tidelog.config.properties import format_properties, parse_properties
from tidelog.errors import StorageError
from tidelog.log import names
from tidelog.ports import Disk
from tidelog.types import BrokerId, Epoch
from tidelog.wire.uuids import ZERO_UUID, parse_uuid, uuid_text

NO_BROKER_EPOCH: Epoch = -1
_CLEAN_SHUTDOWN_VERSION = 0
_TOPIC_ID_LINES = re.compile(r"version:\s+(\d+)\r?\ntopic_id:\s+(\S+)\s*")


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Which node of which cluster a log directory belongs to.

    Version 0 is what brokers under ZooKeeper write, with broker.id; version 1 has node.id, and must be whole.
    """

    cluster_id: str | None
    node_id: BrokerId | None
    directory_id: bytes | None = None
    version: int = 0


def parse_meta_properties(data: bytes, name: str) -> MetaProperties:
    try:
        properties = parse_properties(data.decode("latin-1"))
    except ConfigError as failure:
        raise StorageError(f"{name}: {failure}") from failure
    version = properties.get("version", "0")
    if version not in ("0", "1"):
        raise StorageError(f"{name}: version {version!r} is unknown, expected 0 or 1")
    id_name = "broker.id" if version == "0" else "node.id"
    try:
        node_id = int(properties[id_name]) if id_name in properties else None
        directory_id = parse_uuid(properties["directory.id"]) if "directory.id" in properties else None
    except ValueError as failure:
        raise StorageError(f"{name}: {failure}") from failure
    if version == "1" and (node_id is None or "cluster.id" not in properties):
        raise StorageError(f"{name}: version 1 needs both cluster.id and node.id")
    return MetaProperties(properties.get("cluster.id"), node_id, directory_id, int(version))


def format_meta_properties(meta: MetaProperties) -> bytes:
    properties = {"version": str(meta.version)}
    if meta.node_id is not None:
        properties["broker.id" if meta.version == 0 else "node.id"] = str(meta.node_id)
    if meta.directory_id is not None:
        properties["directory.id"] = uuid_text(meta.directory_id)
    if meta.cluster_id is not None:
        properties["cluster.id"] = meta.cluster_id
    return format_properties(properties).encode("ascii")


def read_meta_properties(disk: Disk, log_directory: str) -> MetaProperties | None:
    """None if the directory has none: it is new, or not a log directory."""
    path = os.path.join(log_directory, names.META_PROPERTIES)
    data = _read(disk, path)
    return None if data is None else parse_meta_properties(data, path)


def write_meta_properties(disk: Disk, log_directory: str, meta: MetaProperties) -> None:
    disk.write_file(os.path.join(log_directory, names.META_PROPERTIES), format_meta_properties(meta))


def parse_topic_id(data: bytes, name: str) -> bytes:
    """The id in a partition.metadata; a later version may say more, but says this first."""
    match = _TOPIC_ID_LINES.match(data.decode("latin-1"))
    try:
        topic_id = parse_uuid(match[2]) if match else ZERO_UUID
    except ValueError as failure:
        raise StorageError(f"{name}: {failure}") from failure
    if topic_id == ZERO_UUID:
        raise StorageError(f"{name} does not hold a topic id: {data[:100]!r}")
    return topic_id


def format_topic_id(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def read_topic_id(disk: Disk, partition_directory: str) -> bytes | None:
    """None if the partition has no partition.metadata: its topic was made without an id."""
    path = os.path.join(partition_directory, names.PARTITION_METADATA)
    data = _read(disk, path)
    return None if data is None else parse_topic_id(data, path)


def write_topic_id(disk: Disk, partition_directory: str, topic_id: bytes) -> None:
    disk.write_file(os.path.join(partition_directory, names.PARTITION_METADATA), format_topic_id(topic_id))


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """The logs of a directory were closed in order; `broker_epoch` is what the broker then had, if it was noted."""

    broker_epoch: Epoch | None


def parse_clean_shutdown(data: bytes) -> CleanShutdown:
    """That the file is there is what counts. Older brokers left it empty, so its text is taken if it is understood."""
    try:
        broker_epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return CleanShutdown(None)
    return CleanShutdown(broker_epoch if type(broker_epoch) is int else None)


def format_clean_shutdown(broker_epoch: Epoch) -> bytes:
    content = {"version": _CLEAN_SHUTDOWN_VERSION, "brokerEpoch": broker_epoch}
    return json.dumps(content, separators=(",", ":")).encode()


def read_clean_shutdown(disk: Disk, log_directory: str) -> CleanShutdown | None:
    """None after a crash."""
    data = _read(disk, os.path.join(log_directory, names.CLEAN_SHUTDOWN))
    return None if data is None else parse_clean_shutdown(data)


def write_clean_shutdown(disk: Disk, log_directory: str, broker_epoch: Epoch = NO_BROKER_EPOCH) -> None:
    """The last thing a broker does with a directory whose logs it has flushed and closed."""
    disk.write_file(os.path.join(log_directory, names.CLEAN_SHUTDOWN), format_clean_shutdown(broker_epoch))


def remove_clean_shutdown(disk: Disk, log_directory: str) -> None:
    """From now on the directory is in use: if the process dies, its logs have to be recovered."""
    path = os.path.join(log_directory, names.CLEAN_SHUTDOWN)
    if disk.exists(path):
        disk.remove(path)
        disk.sync_directory(log_directory)


def _read(disk: Disk, path: str) -> bytes | None:
    try:
        return disk.read_file(path)
    except FileNotFoundError:
        return None
