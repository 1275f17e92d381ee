"""How patient a client is, by Kafka's names and defaults."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.ports import Random

_JITTER = 0.2


class ClientSettings(NamedTuple):
    """Times that all calls of one client share."""

    client_id: str = "tidelog"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    socket_connection_setup_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000

    def backoff_s(self, failures: int, random: Random) -> float:
        """How long to wait after so many failures in a row: doubled each time, and never quite the same."""
        backoff_ms = min(self.retry_backoff_ms * (1 << min(failures - 1, 20)), self.retry_backoff_max_ms)
        return backoff_ms / 1000 * (1 - _JITTER + 2 * _JITTER * random.random())


DEFAULT_SETTINGS = ClientSettings()
