"""Listeners: where to listen, what to tell, and which one brokers use among themselves."""

from __future__ import annotations

import pytest

from tidelog.config.broker import BrokerConfig
from tidelog.config.errors import ConfigError

TWO = {
    "listeners": "INTERNAL://127.0.0.1:9092,EXTERNAL://:9093",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
}


def load(properties: dict[str, str]) -> BrokerConfig:
    return BrokerConfig.load({"broker.id": "1"} | properties, hostname="this.host")


def test_default_is_every_interface_told_as_this_host() -> None:
    config = load({})
    assert [str(one) for one in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(one) for one in config.advertised_listeners] == ["PLAINTEXT://this.host:9092"]
    assert config.inter_broker_listener == config.advertised_listeners[0]
    assert config.control_plane_listener is None


def test_several_listeners() -> None:
    config = load(TWO | {"advertised.listeners": "INTERNAL://10.0.0.1:9092,EXTERNAL://public:80"})
    assert [str(one) for one in config.listeners] == ["INTERNAL://127.0.0.1:9092", "EXTERNAL://:9093"]
    assert str(config.inter_broker_listener) == "INTERNAL://10.0.0.1:9092"
    assert {one.protocol for one in config.listeners} == {"PLAINTEXT"}


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("PLAINTEXT://h:0", "h", 0),
        ("plaintext://h:1", "h", 1),
        ("PLAINTEXT://[::1]:9092", "::1", 9092),
        ("PLAINTEXT://[fe80::1%eth0]:9092", "fe80::1%eth0", 9092),
        ("PLAINTEXT://::1:9092", "::1", 9092),
        ("PLAINTEXT://my-host.example_1:9092", "my-host.example_1", 9092),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    (listener,) = load({"listeners": text}).listeners
    assert (listener.name, listener.host, listener.port) == ("PLAINTEXT", host, port)


def test_ipv6_is_written_with_brackets() -> None:
    assert str(load({"listeners": "PLAINTEXT://[::1]:9092"}).listeners[0]) == "PLAINTEXT://[::1]:9092"


def test_one_port_for_both_address_families() -> None:
    both = {"listeners": "INTERNAL://127.0.0.1:9092,EXTERNAL://[::1]:9092"}
    assert len(load(TWO | both).listeners) == 2


def test_control_plane() -> None:
    assert str(load(TWO | {"control.plane.listener.name": "external"}).control_plane_listener) == "EXTERNAL://:9093"


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"listeners": ""}, "at least one listener"),
        ({"listeners": "PLAINTEXT"}, "NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://h"}, "NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://h:70000"}, "from 0 to 65535"),
        ({"listeners": "PLAINTEXT://h:-1"}, "from 0 to 65535"),
        ({"listeners": "://h:1"}, "NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://h/x:1"}, "NAME://HOST:PORT"),
        ({"listeners": "FOO://h:1"}, "no security protocol for FOO"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "different name"),
        (TWO | {"listeners": "INTERNAL://h:1,EXTERNAL://g:1"}, "different port"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "nobody can connect to 0.0.0.0"),
        ({"advertised.listeners": "PLAINTEXT://[::]:1"}, "nobody can connect to ::"),
        ({"advertised.listeners": "SSL://h:1"}, "SSL is not one of the listeners"),
        ({"listeners": "SSL://h:1"}, "serves PLAINTEXT only"),
        ({"listeners": "PLAINTEXT://h:1,SASL_SSL://h:2"}, "serves PLAINTEXT only"),
        (TWO | {"listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:SASL_PLAINTEXT"}, "SASL_PLAINTEXT"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "LISTENER:PROTOCOL"),
        ({"listener.security.protocol.map": "PLAINTEXT:TLS"}, "must be one of"),
        ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PLAINTEXT:SSL"}, "twice"),
        ({"inter.broker.listener.name": "OTHER"}, "brokers need an advertised listener"),
        (TWO | {"inter.broker.listener.name": ""}, "security.inter.broker.protocol"),
        (TWO | {"security.inter.broker.protocol": "PLAINTEXT"}, "Only one of"),
        (TWO | {"control.plane.listener.name": "X"}, "not one of the listeners"),
        (TWO | {"control.plane.listener.name": "INTERNAL"}, "must differ"),
    ],
)
def test_refused(properties: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(properties)
    assert any(words in problem for problem in caught.value.problems), caught.value.problems
