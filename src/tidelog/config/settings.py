"""The table of all settings: Kafka 3.9's, the names that 4.1 added, and our own.

Kafka's facts are compared with its jars by tests/unit/test_config_settings.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tidelog.config import (
    cluster_settings,
    group_settings,
    kraft_settings,
    log_settings,
    network_settings,
    remote_settings,
    security_settings,
    share_settings,
    tidelog_settings,
    topic_settings,
    transaction_settings,
)
from tidelog.config.setting import Setting

_FAMILIES = (
    log_settings,
    network_settings,
    cluster_settings,
    group_settings,
    transaction_settings,
    security_settings,
    share_settings,
    kraft_settings,
    remote_settings,
    tidelog_settings,
)
_NEAR = 0.75


def _by_name(settings: Iterable[Setting]) -> Mapping[str, Setting]:
    table = {setting.name: setting for setting in settings}
    return MappingProxyType(dict(sorted(table.items())))


BROKER: Mapping[str, Setting] = _by_name(setting for family in _FAMILIES for setting in family.SETTINGS)
TOPIC: Mapping[str, Setting] = _by_name(topic_settings.SETTINGS)
THROTTLES: Mapping[str, Setting] = _by_name(tidelog_settings.THROTTLES)

_LISTENER_PREFIX = "listener.name."
_SYNONYMS = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)


def broker_setting(name: str) -> Setting | None:
    """The row for a name as it may stand in a file: also `listener.name.<listener>.<setting>`."""
    base = listener_base(name)
    return BROKER.get(base or name) or THROTTLES.get(name)


def listener_base(name: str) -> str | None:
    """The setting that `listener.name.<listener>.<setting>` sets for one listener, if that exists."""
    if not name.startswith(_LISTENER_PREFIX):
        return None
    parts = name[len(_LISTENER_PREFIX) :].split(".")
    bases = (".".join(parts[start:]) for start in range(1, len(parts)))
    return next((base for base in bases if base in BROKER), None)


def broker_synonyms(name: str) -> tuple[str, ...]:
    """The names that are asked for a value, in this order."""
    for synonyms in _SYNONYMS:
        if name in synonyms:
            return synonyms
    if name == "log.flush.interval.ms":
        return (name, "log.flush.scheduler.interval.ms")
    base = listener_base(name)
    return (name, base) if base else (name,)


def near_name(name: str, table: Mapping[str, Setting] = BROKER) -> str | None:
    """What was probably meant."""
    found = difflib.get_close_matches(name, list(table), n=1, cutoff=_NEAR)
    return found[0] if found else None
