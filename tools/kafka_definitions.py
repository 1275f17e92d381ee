"""Reads the message definitions in Apache Kafka's jars and merges those of several releases into one truth."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidelog.wire.schema import camel_case
from tidelog.wire.versions import NO_VERSIONS, Versions, versions

FOLDERS = ("common/message/", "common/metadata/", "message/")
KINDS = {"coordinator-key": "key", "coordinator-value": "value"}

RENAMED = {
    # 4.1 lets a voter ask before it is a candidate, and renamed what stays the same on the wire.
    ("VoteRequest", "CandidateEpoch"): "ReplicaEpoch",
    ("VoteRequest", "CandidateId"): "ReplicaId",
    ("VoteRequest", "CandidateDirectoryId"): "ReplicaDirectoryId",
    # 4.1 lists other configuration resources too, under the same API key.
    ("ListClientMetricsResourcesRequest", ""): "ListConfigResourcesRequest",
    ("ListClientMetricsResourcesResponse", ""): "ListConfigResourcesResponse",
    ("ListClientMetricsResourcesResponse", "ClientMetricsResources"): "ConfigResources",
    ("ListClientMetricsResourcesResponse", "ClientMetricsResource"): "ConfigResource",
    ("ListClientMetricsResourcesResponse", "Name"): "ResourceName",
}
"""(Message, field or struct in it) to today's name; with "" the message itself."""

NEWER_IS_RIGHT = {
    # Share groups were not yet released in 3.9.1; these got a field in version 0 until they were.
    "ReadShareGroupStateSummaryResponse",
    "ShareGroupMetadataValue",
}
RECORD_TYPE_IN_OLD_VERSION = {
    # Before 4.0 the version of a record's key was at the same time its type. 4.1 declares the type as the API key and
    # the key itself in version 0; the bytes are the same. Where 4.1 dropped the record, the type is given here.
    "ShareGroupPartitionMetadataKey": 9,
    "ShareGroupPartitionMetadataValue": 9,
}


@dataclass(frozen=True)
class FieldFacts:
    """A field as Kafka defines it. `default` is Python source, or None for what the type has."""

    kafka_name: str
    element: str
    is_array: bool
    struct: tuple[FieldFacts, ...]
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: str | None
    ignorable: bool
    never_flexible: bool

    @property
    def json_name(self) -> str:
        return self.kafka_name[0].lower() + self.kafka_name[1:]

    @property
    def python_name(self) -> str:
        plain = self.kafka_name.replace("KRaft", "Kraft").replace("2Pc", "_2pc")
        return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", plain).lower()

    @property
    def content(self) -> tuple[str, bool, str | None]:
        """What no release may change about a field."""
        return self.element, self.is_array, self.default

    @property
    def expected_json_name(self) -> str:
        return camel_case(self.python_name)


@dataclass(frozen=True)
class MessageFacts:
    """A message as Kafka defines it."""

    name: str
    kind: str
    api_key: int | None
    valid: Versions
    flexible: Versions
    fields: list[FieldFacts] = field(default_factory=list)

    def structs(self) -> dict[str, list[FieldFacts]]:
        """The fields of each struct in it, inner structs first."""
        found: dict[str, list[FieldFacts]] = {}

        def visit(fields: Iterable[FieldFacts]) -> None:
            for each in fields:
                if each.struct:
                    visit(each.struct)
                    known = found.setdefault(each.element, list(each.struct))
                    if known != list(each.struct):
                        sys.exit(f"{self.name}: {each.element} has two layouts")

        visit(self.fields)
        return found


def read_jars(paths: Iterable[Path]) -> dict[str, dict[str, MessageFacts]]:
    """Release to name to message; releases ascending."""
    releases: dict[str, dict[str, MessageFacts]] = {}
    for path in paths:
        if not path.exists():
            sys.exit(f"{path} does not exist: `make peers` fetches Apache Kafka, or name the jars")
        for jar in sorted(path.glob("kafka-*.jar")) if path.is_dir() else [path]:
            release = re.search(r"-(\d+\.\d+\.\d+)\.jar$", jar.name)
            if release is None:
                sys.exit(f"{jar.name}: no release in the name")
            known = releases.setdefault(release[1], {})
            with zipfile.ZipFile(jar) as archive:
                for name in archive.namelist():
                    if name.startswith(FOLDERS) and name.endswith(".json"):
                        message = read_message(archive.read(name).decode())
                        known[message.name] = message
    by_number = sorted(releases, key=lambda text: [int(part) for part in text.split(".")])
    return {release: releases[release] for release in by_number}


def read_message(text: str) -> MessageFacts:
    definition = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    common = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", [])}
    kind, name = definition["type"], definition["name"]
    return MessageFacts(
        name=RENAMED.get((name, ""), name),
        kind=KINDS.get(kind, kind),
        api_key=definition.get("apiKey"),
        valid=versions(definition["validVersions"]),
        flexible=versions(definition.get("flexibleVersions", "none")),
        fields=[read_field(name, each, common) for each in definition.get("fields", [])],
    )


def read_field(message: str, definition: dict[str, Any], common: dict[str, Any]) -> FieldFacts:
    is_array = definition["type"].startswith("[]")
    element = definition["type"].removeprefix("[]")
    inner = definition.get("fields") or common.get(element, [])
    return FieldFacts(
        kafka_name=RENAMED.get((message, definition["name"]), definition["name"]),
        element=RENAMED.get((message, element), element),
        is_array=is_array,
        struct=tuple(read_field(message, each, common) for each in inner),
        versions=versions(definition.get("versions") or definition["taggedVersions"]),
        nullable=versions(definition.get("nullableVersions", "none")),
        tagged=versions(definition.get("taggedVersions", "none")),
        tag=int(definition.get("tag", -1)),
        default=read_default(definition, element if not is_array and not inner else ""),
        ignorable=definition.get("ignorable", False),
        never_flexible=definition.get("flexibleVersions") == "none",
    )


def read_default(definition: dict[str, Any], scalar: str) -> str | None:
    """As Python source; None where it is what the type has anyway."""
    if "default" not in definition:
        return None
    value = definition["default"]
    if value is None or value == "null":
        return "None"
    if scalar == "bool":
        return "True" if str(value).lower() == "true" else None
    if scalar in ("string", "bytes"):
        return repr(value) if value else None
    number = int(str(value), 0)
    return str(number) if number else None


def merged_messages(releases: dict[str, dict[str, MessageFacts]]) -> dict[str, MessageFacts]:
    """One declaration per name, checked against every release."""
    merged: dict[str, MessageFacts] = {}
    for known in releases.values():
        for name, message in known.items():
            merged[name] = merge(renumber(merged[name], message), message) if name in merged else message
    for name, record_type in RECORD_TYPE_IN_OLD_VERSION.items():
        if name in merged:
            merged[name] = as_record(merged[name], record_type)
    for release, known in releases.items():
        for name, message in known.items():
            check(release, message, merged[name])
    return {name: merged[name] for name in sorted(merged)}


def as_record(message: MessageFacts, record_type: int) -> MessageFacts:
    """A record of 3.9 as 4.1 declares it: the type beside the version."""
    if message.name.endswith("Value"):
        return replace(message, kind="value", api_key=record_type)
    if record_type not in message.valid:
        sys.exit(f"{message.name}: record type {record_type} is not among its versions, {message.valid}")
    fields = [replace(each, versions=versions("0+")) for each in message.fields if record_type in each.versions]
    return replace(message, kind="key", api_key=record_type, valid=versions("0"), fields=fields)


def renumber(older: MessageFacts, newer: MessageFacts) -> MessageFacts:
    if newer.kind in ("key", "value") and older.kind == "data" and newer.api_key is not None:
        return as_record(older, newer.api_key)
    return older


def merge(older: MessageFacts, newer: MessageFacts) -> MessageFacts:
    if not newer.valid:
        return older
    if (older.kind, older.api_key) != (newer.kind, newer.api_key) or older.flexible != newer.flexible:
        sys.exit(f"{newer.name}: kind, key or flexible versions differ between releases")
    valid = Versions(min(older.valid.first, newer.valid.first), max(older.valid.last, newer.valid.last))
    if set(valid) != set(older.valid) | set(newer.valid):
        sys.exit(f"{newer.name}: versions {older.valid} and {newer.valid} leave a gap")
    joint = _Merge(newer.name, older.valid, newer.valid, valid)
    return replace(newer, valid=valid, fields=joint.fields(older.fields, newer.fields, valid))


@dataclass(frozen=True)
class _Merge:
    """Merges the fields of one message known to two releases."""

    message: str
    old_valid: Versions
    new_valid: Versions
    valid: Versions

    def fields(self, older: Iterable[FieldFacts], newer: Iterable[FieldFacts], within: Versions) -> list[FieldFacts]:
        old = list(older)
        by_name = {each.kafka_name: each for each in old}
        result = [self.field(by_name.get(each.kafka_name), each, within) for each in newer]
        # A field that only the older release has goes behind the one it stood behind.
        for position, each in enumerate(old):
            names = [known.kafka_name for known in result]
            if each.kafka_name not in names:
                place = names.index(old[position - 1].kafka_name) + 1 if position else 0
                result.insert(place, self.field(each, None, within))
        return result

    def field(self, older: FieldFacts | None, newer: FieldFacts | None, within: Versions) -> FieldFacts:
        some = newer or older
        assert some is not None
        if older and newer and older.content != newer.content:
            sys.exit(f"{self.message}.{some.kafka_name}: type or default differ between releases")
        if older and newer and older.tagged and newer.tagged and older.tag != newer.tag:
            sys.exit(f"{self.message}.{some.kafka_name}: tags differ between releases")
        present = self.span(older and older.versions, newer and newer.versions)
        return replace(
            some,
            struct=tuple(self.fields(older.struct if older else (), newer.struct if newer else (), present)),
            versions=present,
            nullable=self.span(older and older.nullable, newer and newer.nullable),
            tagged=self.span(older and older.tagged, newer and newer.tagged),
            ignorable=self.ignorable(older, newer, within),
        )

    def span(self, older: Versions | None, newer: Versions | None) -> Versions:
        """The versions in which something holds: as the newer release says where it knows the version."""

        def holds(version: int) -> bool:
            if version in self.new_valid:
                return newer is not None and version in newer
            return version in (older if older is not None else newer if newer is not None else NO_VERSIONS)

        held = [version for version in self.valid if holds(version)]
        if not held:
            return NO_VERSIONS
        if held != list(range(held[0], held[-1] + 1)):
            sys.exit(f"{self.message}: {held} is not one range")
        return versions(f"{held[0]}+") if held[-1] == self.valid.last else Versions(held[0], held[-1])

    def ignorable(self, older: FieldFacts | None, newer: FieldFacts | None, within: Versions) -> bool:
        """Matters only to a release that knows a version that has the struct but not the field."""
        heard = {
            each.ignorable
            for each, valid in ((older, self.old_valid), (newer, self.new_valid))
            if each and any(version in within and version not in each.versions for version in valid)
        }
        some = newer or older
        assert some is not None
        if len(heard) > 1:
            sys.exit(f"{self.message}.{some.kafka_name}: releases differ in what is ignorable")
        return heard.pop() if heard else some.ignorable


def check(release: str, message: MessageFacts, merged: MessageFacts) -> None:
    """The merged declaration must mean, in every version the release knows, what the release means."""
    if not message.valid or message.name in NEWER_IS_RIGHT:
        return
    message = renumber(message, merged)
    for version in message.valid:
        if version not in merged.valid or (version in message.flexible) != (version in merged.flexible):
            sys.exit(f"{release} {message.name} version {version}: lost or of another kind")
        theirs = projection(message.fields, version)
        ours = projection(merged.fields, version)
        if theirs != without_new_tags(ours, theirs):
            sys.exit(f"{release} {message.name} version {version}:\n  {theirs}\nmerged:\n  {ours}")


def projection(fields: Iterable[FieldFacts], version: int) -> list[tuple[Any, ...]]:
    """What a version of a message looks like on the wire."""
    return [
        (
            each.kafka_name,
            each.element,
            each.is_array,
            version in each.nullable,
            each.tag if version in each.tagged else -1,
            each.default,
            projection(each.struct, version),
        )
        for each in fields
        if version in each.versions
    ]


def without_new_tags(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A tagged field may be added to a version that is out: who does not know it skips it."""
    known = {each[0]: each for each in theirs}
    return [
        (*each[:-1], without_new_tags(each[-1], known[each[0]][-1] if each[0] in known else each[-1]))
        for each in ours
        if each[0] in known or each[4] < 0
    ]
