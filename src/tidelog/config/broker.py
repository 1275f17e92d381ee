"""The configuration of one broker: what its file and command line say, made into typed values, checked as a whole."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tidelog.config import settings
from tidelog.config.checks import connection_overrides, cross_checks, log_dirs
from tidelog.config.errors import ConfigError
from tidelog.config.listeners import Listener, Listeners, parse_listeners
from tidelog.config.setting import Setting
from tidelog.config.support import is_served, refusal
from tidelog.config.values import Value, invalid, text_of

_NOTHING: Mapping[str, str] = MappingProxyType({})
_IDS = ("broker.id", "node.id")


class BrokerConfig:
    """Typed values by Kafka's names: `config["log.segment.bytes"]`. It never changes; an update makes a new one.

    `originals` are the texts of the file and command line, `dynamic_default` and `dynamic` those that were set
    through AlterConfigs, for all brokers and for this one; the later ones win.
    """

    __slots__ = ("_listeners", "_values", "dynamic", "dynamic_default", "originals", "warnings")

    def __init__(
        self,
        originals: Mapping[str, str],
        values: Mapping[str, Any],
        listeners: Listeners,
        warnings: list[str],
        dynamic_default: Mapping[str, str] = _NOTHING,
        dynamic: Mapping[str, str] = _NOTHING,
    ) -> None:
        self.originals = originals
        self._listeners = listeners
        self.warnings = warnings
        self.dynamic_default = dynamic_default
        self.dynamic = dynamic
        self._values = values

    @classmethod
    def defaults(cls) -> BrokerConfig:
        """Of a file that says nothing but a broker's id."""
        return cls.load({"broker.id": "0"})

    @classmethod
    def load(
        cls, properties: Mapping[str, str], overrides: Mapping[str, str] = _NOTHING, *, hostname: str = "localhost"
    ) -> BrokerConfig:
        """ConfigError with every problem there is. What is only odd is in `warnings`, for the caller to log.

        `hostname` is what others are told where a listener has no host of its own.
        """
        originals = {name: str(value) for name, value in {**properties, **overrides}.items()}
        problems: list[str] = []
        warnings: list[str] = []
        again = _equate_ids(originals, problems)
        values: dict[str, Any] = {name: setting.default for name, setting in settings.BROKER.items()}
        for name, text in originals.items():
            _take(name, text, values, [] if name == again else problems, [] if name == again else warnings)
        if values["broker.id"] < 0 and not any(one in problem for problem in problems for one in _IDS):
            problems.append(invalid("broker.id", values["broker.id"], "every broker needs its own number, 0 or more"))
        _choose_coordination(originals, values, warnings)
        problems.extend(cross_checks(values))
        listeners: Listeners | None = None
        try:
            listeners = parse_listeners(values, originals, hostname)
        except ConfigError as error:
            problems.extend(error.problems)
        if problems or listeners is None:
            raise ConfigError(list(dict.fromkeys(problems)))
        return cls(MappingProxyType(originals), MappingProxyType(values), listeners, warnings)

    def with_dynamic(self, default: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        """The same file with other dynamic values. One that does not fit is left out and warned about: it is stored
        already, and a broker must be able to start with it."""
        values: dict[str, Any] = {name: setting.default for name, setting in settings.BROKER.items()}
        for name, text in self.originals.items():
            _take(name, text, values, [], [])
        values["tidelog.coordination"] = self["tidelog.coordination"]
        warnings: list[str] = []
        for layer in (default, own):
            for name, text in layer.items():
                setting = settings.broker_setting(name)
                if setting is None:
                    continue
                try:
                    values[name] = setting.read(text, name)
                except ConfigError as error:
                    warnings.append(f"A dynamic setting is left out: {error}")
        frozen = MappingProxyType(values)
        kept = (MappingProxyType(dict(default)), MappingProxyType(dict(own)))
        return BrokerConfig(self.originals, frozen, self._listeners, warnings, *kept)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Value = None) -> Any:
        return self._values.get(name, default)

    @property
    def values(self) -> Mapping[str, Any]:
        return self._values

    @property
    def broker_id(self) -> int:
        return int(self["broker.id"])

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """Where to listen; a port 0 is any free one."""
        return self._listeners.bound

    @property
    def advertised_listeners(self) -> tuple[Listener, ...]:
        """What others are told; a port 0 stands for the one that was bound."""
        return self._listeners.advertised

    @property
    def inter_broker_listener(self) -> Listener:
        return self._listeners.inter_broker

    @property
    def control_plane_listener(self) -> Listener | None:
        return self._listeners.control_plane

    @property
    def log_dirs(self) -> tuple[str, ...]:
        return log_dirs(self._values)

    @property
    def coordination_dir(self) -> str:
        """Beside the first log directory unless named, so that brokers whose directories lie together share it."""
        named = self["tidelog.coordination.dir"]
        return named or os.path.join(os.path.dirname(os.path.abspath(self.log_dirs[0])), "tidelog-coordination")

    @property
    def max_connections_per_ip_overrides(self) -> Mapping[str, int]:
        return connection_overrides(self["max.connections.per.ip.overrides"]) or {}


def _equate_ids(originals: dict[str, str], problems: list[str]) -> str | None:
    """broker.id and node.id are two names of one thing. Returns the one of which nothing is to be told again."""
    given = {name: originals[name] for name in _IDS if name in originals}
    if len({text.strip() for text in given.values()}) > 1:
        problems.append("broker.id and node.id are the same thing: set one of them, or both to the same value")
    elif given:
        originals.update(dict.fromkeys(_IDS, next(iter(given.values()))))
        return _IDS[1] if _IDS[0] in given else _IDS[0]
    return None


def _take(name: str, text: str, values: dict[str, Any], problems: list[str], warnings: list[str]) -> None:
    """Read one line of the file into `values`."""
    setting = settings.broker_setting(name)
    unknown = unknown_setting(name)
    if setting is None or unknown is not None:
        warnings.append(unknown or name)
        return
    try:
        value = setting.read(text, name)
    except ConfigError as error:
        problems.extend(error.problems)
        return
    values[name] = value
    if value == setting.default:
        return
    reason = refusal(setting.name)
    if reason:
        problems.append(f"{name} is set to {_shown(setting, value)}: {reason}. Remove it")
    elif not is_served(setting):
        warnings.append(f"{name}={_shown(setting, value)} is accepted, but has no effect in tidelog")


def unknown_setting(name: str) -> str | None:
    """What is wrong with a name in a file or on a command line; None if a broker knows it."""
    if settings.broker_setting(name) is not None and name not in settings.THROTTLES:
        return None
    if name in settings.THROTTLES:
        return f"{name} cannot be set in a file; use `kafka-configs --alter`"
    near = settings.near_name(name)
    if near:
        return f"Unknown setting {name}: did you mean {near}?"
    if name in settings.TOPIC:
        synonyms = " or ".join(settings.TOPIC[name].synonyms)
        return f"Unknown setting {name}: it is one of topics" + (f"; for the broker use {synonyms}" if synonyms else "")
    return f"Unknown setting {name}"


def _shown(setting: Setting, value: Value) -> str:
    return "[hidden]" if setting.sensitive else str(text_of(value))


def _choose_coordination(originals: Mapping[str, str], values: dict[str, Any], warnings: list[str]) -> None:
    if not values["zookeeper.connect"]:
        return
    if "tidelog.coordination" not in originals:
        values["tidelog.coordination"] = "zookeeper"
    elif values["tidelog.coordination"] != "zookeeper":
        warnings.append(f"zookeeper.connect is not used: tidelog.coordination is {values['tidelog.coordination']}")
