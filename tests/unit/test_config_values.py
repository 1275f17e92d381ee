"""Text becomes a value and back, as Kafka does it."""

from __future__ import annotations

import pytest

from tidelog.config.errors import ConfigError
from tidelog.config.validators import GzipLevel, KafkaVersion, NonEmpty, OneOf, ThrottledReplicas, between, one_of
from tidelog.config.values import Type, Value, parse, text_of


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Type.BOOLEAN, " TRUE ", True),
        (Type.BOOLEAN, "false", False),
        (Type.INT, " +5 ", 5),
        (Type.INT, "-2147483648", -(2**31)),
        (Type.SHORT, "32767", 32767),
        (Type.LONG, "9223372036854775807", 2**63 - 1),
        (Type.DOUBLE, "0.5", 0.5),
        (Type.DOUBLE, ".5e1", 5.0),
        (Type.DOUBLE, "1.7976931348623157E308", 1.7976931348623157e308),
        (Type.LIST, "a , b,c", ("a", "b", "c")),
        (Type.LIST, "", ()),
        (Type.STRING, " x y ", "x y"),
        (Type.PASSWORD, "secret", "secret"),
        (Type.CLASS, "a.b.C", "a.b.C"),
    ],
)
def test_parse(kind: Type, text: str, value: Value) -> None:
    assert parse("name", kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (Type.BOOLEAN, "yes", "Expected value to be either true or false"),
        (Type.INT, "2147483648", "Not a number of type INT"),
        (Type.INT, "", "Not a number of type INT"),
        (Type.INT, "1_000", "Not a number of type INT"),
        (Type.INT, "0x10", "Not a number of type INT"),
        (Type.INT, "٣", "Not a number of type INT"),
        (Type.SHORT, "40000", "Not a number of type SHORT"),
        (Type.LONG, "1" * 5000, "Not a number of type LONG"),
        (Type.DOUBLE, "nan", "Not a number of type DOUBLE"),
        (Type.DOUBLE, "1e999", "Not a number of type DOUBLE"),
    ],
)
def test_parse_refuses(kind: Type, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("some.name", kind, text)
    assert str(caught.value) == f"Invalid value {text} for configuration some.name: {reason}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (7, "7"),
        (("a", "b"), "a,b"),
        ((), ""),
        (0.5, "0.5"),
        (0.0, "0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (9999999.0, "9999999.0"),
        (10000000.0, "1.0E7"),
        (123456789.0, "1.23456789E8"),
        (-2.5e-7, "-2.5E-7"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_text_is_javas(value: Value, text: str | None) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("validator", "good", "bad"),
    [
        (between(1, 3), (1, 3), (0, 4)),
        (one_of("a", "b"), ("a", ("a", "b"), ()), ("c", ("a", "c"))),
        (OneOf(("A",), any_case=True), ("a", "A"), ("b",)),
        (NonEmpty(), ("x", None), ("",)),
        (GzipLevel(), (-1, 1, 9), (0, 10, -2)),
        (ThrottledReplicas(), ((), ("*",), ("0:1", "1:2")), (("abc",), ("0:1", "*"), ("0:",))),
        (KafkaVersion(), ("3.9", "3.9-IV0", "0.10.2", "2.0.1"), ("5.0", "x", "3")),
    ],
)
def test_validators(validator: object, good: tuple[Value, ...], bad: tuple[Value, ...]) -> None:
    for value in good:
        assert validator.problem("n", value) is None  # type: ignore[attr-defined]
    for value in bad:
        assert validator.problem("n", value)  # type: ignore[attr-defined]
