"""What values a setting allows: a validator says what is wrong with one, or None; as text it says what is allowed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from tidelog.config.values import Value, invalid


class Validator(Protocol):
    def problem(self, name: str, value: Value) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high`, both allowed."""

    low: float | None = None
    high: float | None = None

    def problem(self, name: str, value: Value) -> str | None:
        if value is None:
            return None
        assert isinstance(value, int | float)
        if self.low is not None and value < self.low:
            return invalid(name, value, f"Value must be at least {self.low}")
        if self.high is not None and value > self.high:
            return invalid(name, value, f"Value must be no more than {self.high}")
        return None

    def __str__(self) -> str:
        return f"[{self.low},...]" if self.high is None else f"[{self.low},...,{self.high}]"


def at_least(low: float) -> Range:
    return Range(low)


def between(low: float, high: float) -> Range:
    return Range(low, high)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these words; a list is made of them only."""

    words: tuple[str, ...]
    any_case: bool = False

    def problem(self, name: str, value: Value) -> str | None:
        if value is None:
            return None
        given = value if isinstance(value, tuple) else (str(value),)
        allowed = {word.upper() for word in self.words} if self.any_case else set(self.words)
        for word in given:
            if (word.upper() if self.any_case else word) not in allowed:
                return invalid(name, word, f"String must be one of: {', '.join(self.words)}")
        return None

    def __str__(self) -> str:
        return f"{'(case insensitive) ' if self.any_case else ''}[{', '.join(self.words)}]"


def one_of(*words: str) -> OneOf:
    return OneOf(words)


@dataclass(frozen=True, slots=True)
class NonEmpty:
    """Some text, where it is set at all."""

    def problem(self, name: str, value: Value) -> str | None:
        return invalid(name, value, "String must be non-empty") if value == "" else None

    def __str__(self) -> str:
        return "non-empty string"


@dataclass(frozen=True, slots=True)
class GzipLevel:
    """1 to 9, or -1 for the codec's own choice."""

    def problem(self, name: str, value: Value) -> str | None:
        if value == -1 or (isinstance(value, int) and 1 <= value <= 9):
            return None
        return invalid(name, value, "Value must be between 1 and 9 or equal to -1")

    def __str__(self) -> str:
        return "[1,...,9] or -1"


_REPLICA = re.compile(r"\s*[0-9]+\s*:\s*[0-9]+\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """`*`, or PARTITION:BROKER pairs."""

    def problem(self, name: str, value: Value) -> str | None:
        assert isinstance(value, tuple)
        if value == ("*",) or all(_REPLICA.fullmatch(pair) for pair in value):
            return None
        return invalid(
            name,
            f"[{', '.join(value)}]",
            f"{name} must be the literal '*' or a list of replicas in the following format: {self}",
        )

    def __str__(self) -> str:
        return "[partitionId]:[brokerId],[partitionId]:[brokerId],..."


_VERSION = re.compile(r"0\.(8\.[0-2]|9\.0|1[01]\.[0-2])([.-].*)?|[1-4]\.[0-9]+([.-].*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class KafkaVersion:
    """A release of Kafka such as 3.9 or 3.9-IV0."""

    def problem(self, name: str, value: Value) -> str | None:
        if value is None or _VERSION.fullmatch(str(value)):
            return None
        return invalid(name, value, "Version is not a release of Kafka such as 3.9 or 3.9-IV0")

    def __str__(self) -> str:
        return "a release of Kafka"
