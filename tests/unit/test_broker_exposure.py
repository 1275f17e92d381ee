"""A listener that other machines can reach is warned of, once, at the start."""

from __future__ import annotations

import pytest

from tidelog.broker.main import warn_of_exposure
from tidelog.config.broker import BrokerConfig


def _warnings(listeners: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    advertised = "PLAINTEXT://localhost:9092"
    config = BrokerConfig.load({"broker.id": "1", "listeners": listeners, "advertised.listeners": advertised})
    warn_of_exposure(config)
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    "listeners",
    [
        "PLAINTEXT://127.0.0.1:9092",
        "PLAINTEXT://localhost:9092",
        "PLAINTEXT://[::1]:9092",
        "PLAINTEXT://127.8.9.1:0",
    ],
)
def test_loopback_is_not_warned_of(listeners: str, caplog: pytest.LogCaptureFixture) -> None:
    assert _warnings(listeners, caplog) == []


@pytest.mark.parametrize("address", [":9092", "0.0.0.0:9092", "[::]:9092", "10.1.2.3:9092", "broker.example:9092"])
def test_other_addresses_are_warned_of_in_one_line(address: str, caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = _warnings(f"PLAINTEXT://{address}", caplog)
    assert f"PLAINTEXT://{address}" in warning
    assert "trusted network only" in warning


def test_all_listeners_are_named_together(caplog: pytest.LogCaptureFixture) -> None:
    protocols = "A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT"
    listeners = "A://127.0.0.1:9092,B://0.0.0.0:9093,C://10.0.0.1:9094"
    config = BrokerConfig.load(
        {
            "broker.id": "1",
            "listeners": listeners,
            "advertised.listeners": "A://127.0.0.1:9092,C://10.0.0.1:9094",
            "listener.security.protocol.map": protocols,
            "inter.broker.listener.name": "A",
        }
    )
    warn_of_exposure(config)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("B://0.0.0.0:9093, C://10.0.0.1:9094: ")
