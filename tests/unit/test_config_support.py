"""The list of served settings against the code that reads them."""

from __future__ import annotations

from pathlib import Path

from tidelog.config import settings, support

SOURCE = Path(__file__).resolve().parent.parent.parent / "src" / "tidelog"

READ_BY_THE_CONFIGURATION = frozenset(
    {
        "advertised.listeners",
        "broker.id",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "max.connections.per.ip.overrides",
        "node.id",
        "producer.id.expiration.ms",
        "security.inter.broker.protocol",
        "tidelog.batch.max.expansion.ratio",
        "tidelog.batch.max.uncompressed.bytes",
        "tidelog.coordination.dir",
        "zookeeper.connect",
    }
)
"""Handed on under another name: as a property of BrokerConfig, in TopicConfig, or as tidelog.coordination."""


def read_by_name() -> set[str]:
    """Settings that stand as a literal in the code.

    config/ names them all, cli/ sets them but reads none, and in spark/ they are those of clients, some of which have
    the same names.
    """
    packages = (SOURCE / "config", SOURCE / "cli", SOURCE / "spark")
    files = [path for path in sorted(SOURCE.rglob("*.py")) if path.parent not in packages]
    text = "\n".join(path.read_text() for path in files)
    return {name for name in settings.BROKER if f'"{name}"' in text}


def given_to_topics() -> set[str]:
    return {name for topic in settings.TOPIC.values() if support.is_served(topic) for name in topic.synonyms}


def test_nothing_is_called_served_that_nobody_reads() -> None:
    unread = support.SERVED - read_by_name() - given_to_topics() - READ_BY_THE_CONFIGURATION
    assert not unread, f"remove from SERVED in config/support.py, or read them: {sorted(unread)}"


def test_what_is_read_is_called_served() -> None:
    unlisted = read_by_name() - support.SERVED
    assert not unlisted, f"add to SERVED in config/support.py: {sorted(unlisted)}"
