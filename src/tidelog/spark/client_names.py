"""The names of Kafka's client settings, which options have with the prefix `kafka.`.

A name that is none is refused. One that has no effect on what the query does is logged.
"""

from __future__ import annotations

import difflib
import functools
import logging
import re
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.spark.errors import OptionError

log = logging.getLogger(__name__)

PREFIX = "kafka."

_BOTH = """
    bootstrap.servers client.id default.api.timeout.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms
    security.protocol socket.connection.setup.timeout.ms
"""
_READING = "fetch.max.bytes fetch.max.wait.ms fetch.min.bytes isolation.level max.partition.fetch.bytes"
_WRITING = "acks batch.size buffer.memory compression.type delivery.timeout.ms linger.ms"


class Side(NamedTuple):
    """What a query does with topics, and the settings that do something there."""

    doing: str
    used: frozenset[str]


READING = Side("reading", frozenset((_BOTH + _READING).split()))
WRITING = Side("writing", frozenset((_BOTH + _WRITING).split()))

_UNUSED = """
    allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter bootstrap.controllers check.crcs
    client.dns.lookup client.rack compression.gzip.level compression.lz4.level compression.zstd.level
    config.providers connections.max.idle.ms enable.idempotence enable.metrics.push exclude.internal.topics group.id
    group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms internal.leave.group.on.close
    internal.throw.on.fetch.stable.offset.unsupported max.block.ms max.in.flight.requests.per.connection
    max.poll.interval.ms max.poll.records max.request.size metadata.max.age.ms metadata.max.idle.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
    partitioner.ignore.keys receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms retries
    sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url security.providers send.buffer.bytes session.timeout.ms
    share.acknowledgement.mode socket.connection.setup.timeout.max.ms ssl.cipher.suites ssl.enabled.protocols
    ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
    ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type
    ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
    ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
    transaction.timeout.ms transaction.two.phase.commit.enable transactional.id
"""
UNUSED = frozenset(_UNUSED.split())
"""Settings of the consumer, producer and admin client of Kafka 3.9 and 4.1 that mean nothing to either side."""

_UNUSED_FAMILIES = re.compile(r"config\.providers\.[^.]+\.(class|param\..+)|metrics\.context\..+")
"""Settings that mean nothing either, and whose names are made up by the user in part."""


def check_names(names: Iterable[str], side: Side, refused: Iterable[str]) -> None:
    """OptionError for a name that no client of Kafka has; what has no effect on this side is logged.

    `refused` has the names that are known and not taken.
    """
    known = READING.used | WRITING.used | UNUSED | frozenset(refused)
    for name in names:
        is_family = _UNUSED_FAMILIES.fullmatch(name) is not None
        if name not in known and not is_family:
            nearest = difflib.get_close_matches(name, sorted(known), 1, 0.0)[0]
            told = f"no client of Kafka has a setting of this name; the nearest is '{PREFIX}{nearest}'"
            raise OptionError(PREFIX + name, told)
        if name not in side.used:
            tell_unused(PREFIX + name, side.doing)


@functools.cache
def tell_unused(option: str, doing: str) -> None:
    """Once in each process."""
    log.warning("option '%s' has no effect on %s", option, doing)
