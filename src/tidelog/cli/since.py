"""Times as people write them."""

from __future__ import annotations

import re
from datetime import datetime

import click

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"(\d+)(ms|s|m|h|d)")


def parse_since(text: str, now_ms: int) -> int:
    """Milliseconds since 1970: from such a number, from a time ago like 10m, or from ISO 8601 (local if it does not
    say otherwise)."""
    if text.isdecimal():
        return int(text)
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError as failure:
        raise click.UsageError(
            f"--since {text!r} is no time: write 2026-01-31T12:00, ms since 1970, or a time ago like 10m"
        ) from failure
