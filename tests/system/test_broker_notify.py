"""A broker under systemd tells it when clients can be served (Type=notify)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.kits.processkit import DEADLINE_S, broker_process


@pytest.mark.parametrize("prefix", ["", "@"], ids=["path", "abstract"])
def test_systemd_hears_that_the_broker_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    address = f"{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(DEADLINE_S)
        systemd.bind(address if not prefix else f"\0{address}")
        monkeypatch.setenv("NOTIFY_SOCKET", prefix + address)
        with broker_process(tmp_path):
            assert systemd.recv(100) == b"READY=1"


def test_a_broker_starts_though_nobody_hears_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/nobody")
    with broker_process(tmp_path) as broker:
        assert "systemd cannot be told" in broker.log
