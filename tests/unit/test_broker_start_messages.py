"""What a broker says while it starts: where it listens, why it cannot, and for whom it waits; and when it is ready."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

import pytest

from tests.kits.brokerkit import Kit, run
from tidelog.broker.cannot_listen import CannotListenError, bound, told
from tidelog.broker.first_contact import why_unmet
from tidelog.broker.main import _tell_start
from tidelog.config.broker import BrokerConfig
from tidelog.config.errors import ConfigError
from tidelog.lab.broker import eventually


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (OSError(errno.EADDRINUSE, "taken"), "port 9092 of b1 is in use by process 7; end it, or name another port in"),
        (OSError(errno.EADDRNOTAVAIL, "no"), "port 9092 of b1 cannot be listened on: it is no address of this machine"),
        (OSError(errno.EACCES, "no"), "port 9092 of b1 cannot be listened on: only root may use this port; name"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
    ],
)
def test_why_a_port_cannot_be_listened_on(failure: OSError, says: str) -> None:
    async def listen(host: str, port: int) -> int:
        raise failure

    with pytest.raises(CannotListenError) as raised:
        asyncio.run(bound("listeners", "b1", 9092, listen))
    text = told(raised.value, lambda port: 7)
    assert says in text
    assert text.endswith(" listeners")


def test_a_process_that_cannot_be_seen_is_left_out() -> None:
    failure = CannotListenError("tidelog.metrics.port", "", 9404, OSError(errno.EADDRINUSE, "taken"))
    text = told(failure, lambda port: None)
    assert text == "port 9404 of this machine is in use; end it, or name another port in tidelog.metrics.port"


@pytest.mark.parametrize(("port", "advertised"), [(0, ""), (9092, ", advertised as PLAINTEXT://127.0.0.1:9092")])
def test_a_port_is_told_when_it_is_known(caplog: pytest.LogCaptureFixture, port: int, advertised: str) -> None:
    listener = f"PLAINTEXT://127.0.0.1:{port}"
    with caplog.at_level(logging.INFO):
        _tell_start(BrokerConfig.load({"broker.id": "1", "listeners": listener, "log.dirs": "d"}))
    assert f"listeners {listener}{advertised}, log directories d" in caplog.messages[0]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"broker.id": "abc"}, "Invalid value abc for configuration broker.id: Not a number of type INT"),
        ({"node.id": "abc"}, "Invalid value abc for configuration node.id: Not a number of type INT"),
        (
            {"broker.id": "abc", "node.id": "abc"},
            "Invalid value abc for configuration broker.id: Not a number of type INT",
        ),
    ],
)
def test_a_bad_id_is_one_problem(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.load(given)
    assert raised.value.problems == (problem,)


def test_why_zookeeper_is_not_met() -> None:
    async def story() -> None:
        assert await why_unmet("127.0.0.1:1") == "127.0.0.1:1: Connection refused"
        assert await why_unmet("nobody.invalid:2181") == "nobody.invalid:2181: no address is known for this name"
        for wrong in ("127.0.0.1:99999", "x..y:2181", "a" * 70 + ":2181"):
            assert await why_unmet(wrong) == f"{wrong} is no HOST:PORT"
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            server = f"127.0.0.1:{silent.getsockname()[1]}"
            assert await why_unmet(server) == f"{server} takes connections, but opens no session"

    asyncio.run(story())


def test_after_a_lost_session_it_is_ready_when_a_controller_has_told_its_new_life_everything() -> None:
    async def story(kit: Kit) -> None:
        broker, before = kit.broker, kit.broker.epoch
        assert broker.why_not_ready() == ""
        kit.expire_session()
        await eventually(lambda: broker.epoch > before)
        await eventually(lambda: broker.why_not_ready() == "")
        assert broker.metadata.told_epoch == broker.epoch
        broker.metadata.told_epoch = before  # as it is until the controller has told the new life
        assert broker.why_not_ready() == "no controller has told the broker of the cluster yet"

    run(story)
