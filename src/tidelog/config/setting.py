"""One setting: its name, type, default and rules. The table of them all is `tidelog.config.settings`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tidelog.config.errors import ConfigError
from tidelog.config.validators import Validator
from tidelog.config.values import Type, Value, parse


class Scope(Enum):
    BROKER = "broker"
    TOPIC = "topic"


class UpdateMode(Enum):
    """Whether a running broker takes a new value, and for whom."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"
    """For one broker, or as the default of all."""


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


HIGH, LOW = Importance.HIGH, Importance.LOW
PER_BROKER, CLUSTER_WIDE = UpdateMode.PER_BROKER, UpdateMode.CLUSTER_WIDE


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table. The facts are Kafka 3.9's, but for the few defaults in docs/DEFAULTS.md."""

    name: str
    type: Type
    default: Value
    documentation: str
    scope: Scope
    importance: Importance
    update_mode: UpdateMode
    valid: Validator | None
    synonyms: tuple[str, ...]
    """Of a topic setting: the broker settings that give its value, the first one that is set."""
    internal: bool
    """Not shown to clients."""
    release: str
    """The release of Kafka whose facts these are: 4.1 for names that 3.9 does not have, `tidelog` for our own."""

    @property
    def sensitive(self) -> bool:
        return self.type is Type.PASSWORD

    @property
    def dynamic(self) -> bool:
        return self.update_mode is not UpdateMode.READ_ONLY

    def read(self, text: str, name: str | None = None) -> Value:
        """The value of that text. ConfigError if it is not allowed; `name` if it was set under a longer name."""
        value = parse(name or self.name, self.type, text)
        problem = self.valid.problem(name or self.name, value) if self.valid else None
        if problem:
            raise ConfigError(problem)
        return value


Trait: TypeAlias = Importance | UpdateMode | Validator
Row: TypeAlias = Callable[..., Setting]


def _row(kind: Type, scope: Scope) -> Row:
    """How the families declare a setting of that type: name, default, sentence, then what is not usual about it."""

    def declare(
        name: str,
        default: Value,
        documentation: str,
        *traits: Trait,
        synonyms: tuple[str, ...] = (),
        internal: bool = False,
        release: str = "3.9",
    ) -> Setting:
        importance, update_mode = Importance.MEDIUM, UpdateMode.READ_ONLY
        valid: Validator | None = None
        for trait in traits:
            if isinstance(trait, Importance):
                importance = trait
            elif isinstance(trait, UpdateMode):
                update_mode = trait
            else:
                valid = trait
        return Setting(
            name, kind, default, documentation, scope, importance, update_mode, valid, synonyms, internal, release
        )

    return declare


boolean = _row(Type.BOOLEAN, Scope.BROKER)
string = _row(Type.STRING, Scope.BROKER)
int_ = _row(Type.INT, Scope.BROKER)
short = _row(Type.SHORT, Scope.BROKER)
long = _row(Type.LONG, Scope.BROKER)
double = _row(Type.DOUBLE, Scope.BROKER)
list_ = _row(Type.LIST, Scope.BROKER)
class_ = _row(Type.CLASS, Scope.BROKER)
password = _row(Type.PASSWORD, Scope.BROKER)


class topic:  # noqa: N801 - reads as a word in the table
    """The same for topic settings."""

    boolean = staticmethod(_row(Type.BOOLEAN, Scope.TOPIC))
    string = staticmethod(_row(Type.STRING, Scope.TOPIC))
    int_ = staticmethod(_row(Type.INT, Scope.TOPIC))
    long = staticmethod(_row(Type.LONG, Scope.TOPIC))
    double = staticmethod(_row(Type.DOUBLE, Scope.TOPIC))
    list_ = staticmethod(_row(Type.LIST, Scope.TOPIC))
