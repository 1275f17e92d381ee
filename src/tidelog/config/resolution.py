"""Which value holds and where it comes from: the layers of settings as DescribeConfigs shows them.

A broker's value is the first of: set for it, set for all brokers, in its file, the default. A topic's is its own, else
the broker's by synonym. Each entry lists all layers that have a value, the winning one first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from tidelog.config import settings
from tidelog.config.broker import BrokerConfig
from tidelog.config.setting import Setting
from tidelog.config.topic import NAMES, TopicConfig
from tidelog.config.values import Type, text_of


class Source(IntEnum):
    """The numbers are those of DescribeConfigs."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: Source


class Entry(NamedTuple):
    """One setting as it is shown. The value of a secret, and of a name nobody knows, is hidden."""

    name: str
    value: str | None
    source: Source
    read_only: bool
    sensitive: bool
    type: Type
    synonyms: tuple[Synonym, ...]
    documentation: str | None


def describe_broker(config: BrokerConfig, names: Collection[str] | None = None) -> list[Entry]:
    """Everything that is public, and what was set besides, sorted by name; only `names` if given."""
    public = (name for name, setting in settings.BROKER.items() if not setting.internal)
    every = {*public, *config.originals, *config.dynamic_default, *config.dynamic}
    return [_broker_entry(config, name, own=True) for name in sorted(_wanted(every, names))]


def describe_default_broker(config: BrokerConfig, names: Collection[str] | None = None) -> list[Entry]:
    """What is set for all brokers."""
    return [_broker_entry(config, name, own=False) for name in sorted(_wanted(config.dynamic_default, names))]


def describe_topic(
    config: TopicConfig, overrides: Mapping[str, str], broker: BrokerConfig, names: Collection[str] | None = None
) -> list[Entry]:
    """Every topic setting, sorted by name; only `names` if given."""
    return [_topic_entry(config, overrides, broker, name) for name in sorted(_wanted(NAMES, names))]


def _wanted(every: Collection[str], names: Collection[str] | None) -> Iterator[str]:
    return (name for name in every if names is None or name in names)


def _broker_entry(config: BrokerConfig, name: str, *, own: bool) -> Entry:
    setting = settings.broker_setting(name)
    sensitive = setting is None or setting.sensitive
    synonyms = _broker_synonyms(config, name, sensitive)
    if not own:
        synonyms = tuple(synonym for synonym in synonyms if synonym.source is Source.DYNAMIC_DEFAULT_BROKER_CONFIG)
    if sensitive:
        value = None
    elif own:
        value = text_of(config.get(name))
    else:
        value = config.dynamic_default[name]
    return Entry(
        name,
        value,
        synonyms[0].source if synonyms else Source.DEFAULT_CONFIG,
        name not in settings.BROKER or not settings.BROKER[name].dynamic,
        sensitive,
        setting.type if setting else Type.UNKNOWN,
        synonyms,
        setting.documentation if setting else None,
    )


def _topic_entry(config: TopicConfig, overrides: Mapping[str, str], broker: BrokerConfig, name: str) -> Entry:
    setting = settings.TOPIC[name]
    value = text_of(config[name])
    synonyms = _broker_synonyms(broker, setting.synonyms[0], setting.sensitive) if setting.synonyms else ()
    if name in overrides:
        synonyms = (Synonym(name, value, Source.DYNAMIC_TOPIC_CONFIG), *synonyms)
    source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
    return Entry(name, value, source, False, setting.sensitive, setting.type, synonyms, setting.documentation)


def _broker_synonyms(config: BrokerConfig, name: str, sensitive: bool) -> tuple[Synonym, ...]:
    """All layers under all names that count; those of other names before its own first one are not its business."""
    names = settings.broker_synonyms(name)
    layers = (
        (config.dynamic, Source.DYNAMIC_BROKER_CONFIG),
        (config.dynamic_default, Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (config.originals, Source.STATIC_BROKER_CONFIG),
    )
    found = [
        Synonym(synonym, None if sensitive else layer[synonym], source)
        for layer, source in layers
        for synonym in names
        if synonym in layer
    ]
    for synonym in names:
        default = _default(settings.BROKER.get(synonym))
        if default is not None:
            found.append(Synonym(synonym, None if sensitive else default, Source.DEFAULT_CONFIG))
    first = next((index for index, synonym in enumerate(found) if synonym.name == name), len(found))
    return tuple(found[first:])


def _default(setting: Setting | None) -> str | None:
    return text_of(setting.default) if setting else None
