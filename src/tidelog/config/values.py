"""The types of settings: how text becomes a value and a value text, as Kafka reads and shows them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

from tidelog.config.errors import ConfigError

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""A list is a tuple; a class is its name; a password is its text, and hidden wherever it is shown."""


MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MAX_DOUBLE = 1.7976931348623157e308


class Type(IntEnum):
    """The numbers are those of DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_BITS: Mapping[Type, int] = {Type.SHORT: 16, Type.INT: 32, Type.LONG: 64}
_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?", re.ASCII)
_COMMA = re.compile(r"\s*,\s*")


def invalid(name: str, text: object, reason: str) -> str:
    """The sentence for a value that does not fit, in the form Kafka's tools show."""
    return f"Invalid value {text} for configuration {name}: {reason}"


def parse(name: str, kind: Type, text: str) -> Value:
    """ConfigError if the text is not of that type. Blanks around it do not count."""
    text = text.strip()
    if kind is Type.BOOLEAN:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise ConfigError(invalid(name, text, "Expected value to be either true or false"))
        return lowered == "true"
    if kind in _BITS:
        return _whole_number(name, kind, text)
    if kind is Type.DOUBLE:
        return _decimal(name, text)
    if kind is Type.LIST:
        return tuple(_COMMA.split(text)) if text else ()
    return text


def _whole_number(name: str, kind: Type, text: str) -> int:
    limit = 1 << (_BITS[kind] - 1)
    if _WHOLE.fullmatch(text) and len(text) < 25 and -limit <= int(text) < limit:
        return int(text)
    raise ConfigError(invalid(name, text, f"Not a number of type {kind.name}"))


def _decimal(name: str, text: str) -> float:
    if _DECIMAL.fullmatch(text):
        value = float(text.rstrip("dDfF"))
        if math.isfinite(value):
            return value
    raise ConfigError(invalid(name, text, "Not a number of type DOUBLE"))


def text_of(value: Value) -> str | None:
    """As Kafka writes it: `true`, `a,b`, `1.7976931348623157E308`."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _java_double(value: float) -> str:
    """Python and Java agree on the digits; Java has the exponent from 10^7 on and below 10^-3."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        plain = f"{value!r}"
        return plain if "e" not in plain else f"{value:.20f}".rstrip("0")
    sign, digits, exponent = _digits(value)
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _digits(value: float) -> tuple[str, str, int]:
    """Sign, significant digits, and the exponent of the first of them."""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    first = len(whole) - 1 if whole != "0" else -1 - (len(fraction) - len(fraction.lstrip("0")))
    return "-" if value < 0 else "", digits.rstrip("0") or "0", first + int(exponent or 0)
