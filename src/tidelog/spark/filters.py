"""Filters that Spark offers, taken where they say which topics, partitions, offsets or times are wanted. Pure.

A filter that is taken whole need not be applied again. One on timestamps only moves the start: records may be out of
order, so Spark applies it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from tidelog.spark.planning import Narrowing

F = TypeVar("F")

_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOW = {"EqualTo": 0, "EqualNullSafe": 0, "GreaterThanOrEqual": 0, "GreaterThan": 1}
_HIGH = {"EqualTo": 0, "EqualNullSafe": 0, "LessThanOrEqual": 0, "LessThan": 1}
"""Filters that give a least or a greatest value, and how far that is from the value they name."""


def narrowed(filters: Iterable[F]) -> tuple[Narrowing, list[F]]:
    """What the filters leave, and those that Spark must still apply."""
    narrowing = Narrowing()
    rest: list[F] = []
    for one in filters:
        narrowing, is_done = _take(narrowing, one)
        if not is_done:
            rest.append(one)
    return narrowing, rest


def _take(narrowing: Narrowing, one: Any) -> tuple[Narrowing, bool]:
    kind = type(one).__name__
    path: tuple[str, ...] = getattr(one, "attribute", ())
    column = path[0] if len(path) == 1 else None
    if kind == "IsNotNull":
        return narrowing, column in _NEVER_NULL
    value: Any = getattr(one, "value", None)
    if column == "topic":
        return _take_topic(narrowing, kind, value)
    if column == "timestamp" and kind in _LOW and isinstance(value, datetime):
        first_ms = _first_ms(value, _LOW[kind])
        return narrowing._replace(min_timestamp=_larger(narrowing.min_timestamp, first_ms)), False
    if column == "partition" and kind == "In" and _all_numbers(value):
        return narrowing._replace(partitions=_both(narrowing.partitions, frozenset(value))), True
    if column not in ("partition", "offset") or not _all_numbers([value]) or kind not in {*_LOW, *_HIGH}:
        return narrowing, False
    return _take_number(narrowing, column, kind, value), True


def _take_number(narrowing: Narrowing, column: str, kind: str, value: int) -> Narrowing:
    least, greatest = f"min_{column}", f"max_{column}"
    bounds: dict[str, Any] = {}
    if kind in _LOW:
        bounds[least] = _larger(getattr(narrowing, least), value + _LOW[kind])
    if kind in _HIGH:
        bounds[greatest] = _smaller(getattr(narrowing, greatest), value - _HIGH[kind])
    return narrowing._replace(**bounds)


def _take_topic(narrowing: Narrowing, kind: str, value: Any) -> tuple[Narrowing, bool]:
    wanted = value if kind == "In" else [value] if kind in ("EqualTo", "EqualNullSafe") else None
    if wanted is None or not all(isinstance(name, str) for name in wanted):
        return narrowing, False
    return narrowing._replace(topics=_both(narrowing.topics, frozenset(wanted))), True


def _first_ms(value: datetime, more_us: int) -> int:
    """The first whole millisecond at or after it, for so are records timed. A time without a zone is UTC's."""
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return -(-((aware - _EPOCH) // timedelta(microseconds=1) + more_us) // 1000)


def _all_numbers(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and all(type(value) is int for value in values)


def _both(before: frozenset[F] | None, now: frozenset[F]) -> frozenset[F]:
    return now if before is None else before & now


def _larger(before: int | None, now: int) -> int:
    return now if before is None else max(before, now)


def _smaller(before: int | None, now: int) -> int:
    return now if before is None else min(before, now)
