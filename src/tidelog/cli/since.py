"""Times as people write them."""

from __future__ import annotations

import re
from datetime import datetime

import click

from tidelog.cli.commands import shortened

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_LATEST_MS = (1 << 63) - 1


def parse_since(text: str, now_ms: int, option: str = "--since") -> int:
    """Milliseconds since 1970: from such a number, from a time ago like 10m, or from ISO 8601 (local if it does not
    say otherwise). What lies before 1970 is 1970."""
    try:
        found = _milliseconds(text, now_ms)
    except (ValueError, OverflowError, OSError) as failure:
        raise click.UsageError(
            f"{option} {shortened(text)!r} is no time: write 2026-01-31T12:00, ms since 1970, or a time ago like 10m"
        ) from failure
    if found > _LATEST_MS:
        raise click.UsageError(f"{option} {shortened(text)!r} is later than any record can be")
    return max(found, 0)


def _milliseconds(text: str, now_ms: int) -> int:
    if text.isascii() and text.isdecimal():
        return int(text)
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def iso_time(timestamp_ms: int) -> str:
    """In local time with its zone. A timestamp that no calendar has is shown as the number it is."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
