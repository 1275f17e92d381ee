"""The settings of a fetcher."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.config.broker import BrokerConfig

_FIRST_REST_MS = 20
LASTING = 20
"""As many failures as make a rest a long one."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """By Kafka's names."""

    wait_max_ms: int
    min_bytes: int
    max_bytes: int
    response_max_bytes: int
    backoff_ms: int
    timeout_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> FetcherSettings:
        return cls(
            wait_max_ms=config["replica.fetch.wait.max.ms"],
            min_bytes=config["replica.fetch.min.bytes"],
            max_bytes=config["replica.fetch.max.bytes"],
            response_max_bytes=config["replica.fetch.response.max.bytes"],
            backoff_ms=config["replica.fetch.backoff.ms"],
            timeout_ms=config["replica.socket.timeout.ms"],
        )

    def rest_s(self, failures: int) -> float:
        """How long after so many failures in a row. Mostly the other side has just not heard yet what we have: the
        first are short, the others as long as Kafka's."""
        return min(_FIRST_REST_MS << min(failures - 1, LASTING), self.backoff_ms) / 1000
