"""Values of settings as JSON has them: numbers, booleans and lists, where Kafka's protocol has text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.wire.messages.configs import DescribeConfigsResourceResult

    Value = str | int | float | bool | list[str] | None

_BOOLEAN, _INT, _SHORT, _LONG, _DOUBLE, _LIST = 1, 3, 4, 5, 6, 7
"""The types of DescribeConfigs. Brokers before 2.6 tell none, and their values stay text."""


def as_value(entry: DescribeConfigsResourceResult) -> Value:
    """What is sensitive is null: brokers do not tell it. A value that its type does not allow stays text."""
    text = None if entry.is_sensitive else entry.value
    if text is None:
        return None
    try:
        if entry.config_type in (_INT, _SHORT, _LONG):
            return int(text)
        if entry.config_type == _DOUBLE:
            return float(text)
    except ValueError:
        return text
    if entry.config_type == _BOOLEAN and text in ("true", "false"):
        return text == "true"
    if entry.config_type == _LIST:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text
