"""The table of settings against the facts of Kafka's jars (fixtures/kafka_settings.json)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tidelog.config import settings, support
from tidelog.config.setting import Setting
from tidelog.config.values import Type, text_of

FACTS = json.loads((Path(__file__).parent / "fixtures" / "kafka_settings.json").read_text())
ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = {"replica.lag.time.max.ms": "10000", "queued.max.request.bytes": "0"}
"""Defaults that our documents name."""
UNCHECKED = ("controller.quorum.bootstrap.servers", "controller.quorum.voters", "authorizer.class.name")
"""Validators of what is refused anyway."""


def rows(scope: str) -> list[tuple[str, list[Any], str]]:
    return [(name, fact, release) for release in ("3.9.1", "4.1.0") for name, fact in FACTS[release][scope].items()]


def check(setting: Setting, fact: list[Any]) -> None:
    kind, default, valid, importance = fact
    assert setting.type is Type[kind.upper()]
    assert text_of(setting.default) == DOCUMENTS.get(setting.name, None if default == "<required>" else default)
    assert setting.importance.value == importance
    if setting.name not in UNCHECKED and not setting.name.endswith(".version"):
        assert (None if setting.valid is None else str(setting.valid)) == valid
    assert setting.documentation.endswith(".")


@pytest.mark.parametrize(("name", "fact", "release"), rows("broker"))
def test_broker_setting_is_kafkas(name: str, fact: list[Any], release: str) -> None:
    setting = settings.BROKER[name]
    check(setting, fact)
    assert setting.update_mode.value == FACTS[release]["modes"].get(name, "read-only")
    assert setting.internal == (name in FACTS[release]["internal"])
    assert setting.release == release[:3]


@pytest.mark.parametrize(("name", "fact", "release"), rows("topic"))
def test_topic_setting_is_kafkas(name: str, fact: list[Any], release: str) -> None:
    setting = settings.TOPIC[name]
    check(setting, fact)
    assert list(setting.synonyms) == FACTS["3.9.1"]["synonyms"].get(name, [])
    assert all(synonym in settings.BROKER for synonym in setting.synonyms)


def test_every_name_is_kafkas_or_marked_as_our_own() -> None:
    kafkas = {name for name, _, _ in rows("broker")}
    own = {name for name, setting in settings.BROKER.items() if setting.release == "tidelog"}
    assert set(settings.BROKER) == kafkas | own
    assert all(name.startswith("tidelog.") for name in own)
    assert set(settings.TOPIC) == {name for name, _, _ in rows("topic")}


def test_every_default_is_allowed_by_its_own_validator() -> None:
    for table in (settings.BROKER, settings.TOPIC, settings.THROTTLES):
        for setting in table.values():
            if setting.default is not None:
                assert setting.read(text_of(setting.default) or "") == setting.default


def test_what_is_served_is_in_the_table_and_not_refused() -> None:
    assert set(settings.BROKER) >= support.SERVED
    refused = {name for name in support.SERVED if support.refusal(name)}
    assert refused == {"security.inter.broker.protocol"}, "served with its default only"
    assert not any(support.refusal(name) for name in settings.TOPIC)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("listener.name.external.max.connections", "max.connections"),
        ("listener.name.external.plain.sasl.jaas.config", "sasl.jaas.config"),
        ("listener.name.external.nonsense", None),
        ("max.connections", None),
    ],
)
def test_settings_of_one_listener(name: str, base: str | None) -> None:
    assert settings.listener_base(name) == base


@pytest.mark.parametrize(
    ("name", "near"),
    [("num.partition", "num.partitions"), ("log.segments.bytes", "log.segment.bytes"), ("frobnicate", None)],
)
def test_near_names(name: str, near: str | None) -> None:
    assert settings.near_name(name) == near


def test_page_of_defaults_is_current() -> None:
    spec = importlib.util.spec_from_file_location("generate_defaults", ROOT / "tools" / "generate_defaults.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.page()
    assert (ROOT / "docs" / "DEFAULTS.md").read_text() == page, "run python tools/generate_defaults.py"
    assert "| replica.lag.time.max.ms | 10000 | 30000 |" in page
