"""What may be changed while a broker runs: the rules for AlterConfigs on brokers and the change of single values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tidelog.config import settings
from tidelog.config.broker import BrokerConfig
from tidelog.config.checks import cross_checks
from tidelog.config.errors import ConfigError
from tidelog.config.setting import Setting, UpdateMode
from tidelog.config.support import FIXED_AT_START, refusal
from tidelog.config.values import Type, parse

_THREADS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)


class Operation(IntEnum):
    """The numbers are those of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    name: str
    operation: Operation
    value: str | None = None


def apply_changes(
    stored: Mapping[str, str],
    changes: Sequence[Change],
    table: Mapping[str, Setting],
    inherited: Mapping[str, str | None],
) -> dict[str, str]:
    """What is stored after the changes. A list grows and shrinks from what holds now: stored or inherited.

    ConfigError if something that is not a list should grow or shrink.
    """
    result = dict(stored)
    for change in changes:
        if change.operation is Operation.DELETE:
            result.pop(change.name, None)
            continue
        given = change.value or ""
        if change.operation is Operation.SET:
            result[change.name] = given
            continue
        result[change.name] = _edited(change, given, table.get(change.name), result, inherited)
    return result


def _edited(
    change: Change, given: str, setting: Setting | None, result: Mapping[str, str], inherited: Mapping[str, str | None]
) -> str:
    """A list with entries added, or taken away."""
    if setting is None or setting.type is not Type.LIST:
        verb = change.operation.name.lower()
        raise ConfigError(f"Config value {verb} is not allowed for config key: {change.name}")
    now = result.get(change.name, inherited.get(change.name))
    entries = parse(change.name, Type.LIST, now or "")
    words = parse(change.name, Type.LIST, given)
    assert isinstance(entries, tuple)
    assert isinstance(words, tuple)
    if change.operation is Operation.APPEND:
        return ",".join(dict.fromkeys((*entries, *words)))
    return ",".join(entry for entry in entries if entry not in words)


def validate_broker(proposed: Mapping[str, str], changed: Sequence[str], current: BrokerConfig, own: bool) -> None:
    """ConfigError if a broker, or with `own` false all of them, cannot be given these values.

    Judged are the names that changed: what was stored before must not stand in the way of its own correction. A name
    that nobody knows is stored, as Kafka does: a plugin may know it.
    """
    known = {name: setting for name in changed if (setting := settings.broker_setting(name))}
    fixed = sorted(name for name, setting in known.items() if name in FIXED_AT_START or not setting.dynamic)
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: {', '.join(fixed)}")
    if not own:
        single = sorted(name for name, setting in known.items() if setting.update_mode is UpdateMode.PER_BROKER)
        if single:
            names = ", ".join(single)
            raise ConfigError(
                f"Cannot update these configs at default cluster level, broker id must be specified: {names}"
            )
    for name, setting in known.items():
        if name not in proposed:
            continue
        reason = refusal(setting.name)
        if reason:
            raise ConfigError(f"{name} cannot be set: {reason}")
        value = setting.read(proposed[name], name)
        if name in _THREADS:
            _check_threads(name, int(str(value)), int(current[name]))
    layers = (current.dynamic_default, proposed) if own else (proposed, current.dynamic)
    _check_together(current.with_dynamic(*layers))


def _check_threads(name: str, new: int, now: int) -> None:
    """Kafka lets a pool at most double or halve at a time."""
    if now and new != now and not now // 2 <= new <= now * 2:
        bound = "greater than double" if new > now else "less than half"
        raise ConfigError(
            f"Dynamic thread count update validation failed for {name}={new}, "
            f"value should not be {bound} the current value {now}"
        )


def _check_together(config: BrokerConfig) -> None:
    problems = list(cross_checks(config.values))
    if problems:
        raise ConfigError(problems)
