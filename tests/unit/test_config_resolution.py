"""The layers of settings against what Kafka 3.9.1 answered (fixtures/kafka_describe_configs.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidelog.config.broker import BrokerConfig
from tidelog.config.resolution import Entry, Source, describe_broker, describe_default_broker, describe_topic
from tidelog.config.topic import topic_config

KAFKA = json.loads((Path(__file__).parent / "fixtures" / "kafka_describe_configs.json").read_text())
STATIC = BrokerConfig.load(KAFKA["static"])
DYNAMIC = STATIC.with_dynamic(KAFKA["dynamic default"], KAFKA["dynamic"])


def rows(entries: list[Entry]) -> list[list[Any]]:
    return [
        [one.name, one.value, one.read_only, one.source, one.sensitive, one.type, [list(s) for s in one.synonyms]]
        for one in entries
    ]


def topic_rows(config: BrokerConfig, overrides: dict[str, str], names: list[str] | None = None) -> list[list[Any]]:
    return rows(describe_topic(topic_config(config, overrides), overrides, config, names))


def test_topic_is_as_kafka_shows_it() -> None:
    assert topic_rows(STATIC, KAFKA["topic overrides"]) == KAFKA["topic"]


def test_topic_over_dynamic_broker_settings_is_as_kafka_shows_it() -> None:
    names = [row[0] for row in KAFKA["topic after"]]
    assert topic_rows(DYNAMIC, KAFKA["topic after overrides"], names) == KAFKA["topic after"]


def test_broker_is_as_kafka_shows_it() -> None:
    names = [row[0] for row in KAFKA["broker"]]
    assert rows(describe_broker(DYNAMIC, names)) == KAFKA["broker"]


def test_default_of_all_brokers_shows_only_what_is_set() -> None:
    (entry,) = describe_default_broker(DYNAMIC)
    assert (entry.name, entry.value, entry.source) == ("log.retention.ms", "7000", Source.DYNAMIC_DEFAULT_BROKER_CONFIG)
    assert [synonym.source for synonym in entry.synonyms] == [Source.DYNAMIC_DEFAULT_BROKER_CONFIG]
    assert describe_default_broker(STATIC) == []


def test_whole_broker_hides_what_is_internal_secret_or_unknown() -> None:
    entries = {entry.name: entry for entry in describe_broker(DYNAMIC)}
    assert list(entries) == sorted(entries)
    assert "unstable.api.versions.enable" not in entries
    assert entries["ssl.key.password"].sensitive
    assert (entries["nope"].value, entries["nope"].sensitive) == (None, True)
    assert entries["log.segment.bytes"].documentation == "Size at which a segment rolls."
