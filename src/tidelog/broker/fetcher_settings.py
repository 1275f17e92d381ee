"""The settings of a fetcher."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_REST_MS = 20
LASTING = 20
"""As many failures as make a rest a long one."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """By Kafka's names, with its defaults."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 1000
    timeout_ms: int = 30_000

    def rest_s(self, failures: int) -> float:
        """How long after so many failures in a row. Mostly the other side has just not heard yet what we have: the
        first are short, the others as long as Kafka's."""
        return min(_FIRST_REST_MS << min(failures - 1, LASTING), self.backoff_ms) / 1000
