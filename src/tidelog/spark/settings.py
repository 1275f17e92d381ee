"""Client settings that came as options with the prefix `kafka.`, by Kafka's names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from tidelog.client.addresses import Address, parse_bootstrap
from tidelog.client.batching import BatchingSettings
from tidelog.client.fetch import FetchSettings
from tidelog.client.offsets import Isolation
from tidelog.client.produce import ALL, DEFAULT_DELIVERY_TIMEOUT_MS
from tidelog.client.settings import ClientSettings
from tidelog.records.header import Codec
from tidelog.spark.client_names import PREFIX, Side, check_names
from tidelog.spark.errors import OptionError

T = TypeVar("T")

BOOTSTRAP = "bootstrap.servers"

_FETCH_BYTES = 8 * 1024 * 1024
"""Of one partition in one answer: a scan has a task for each, and small answers cost it round trips."""
_BATCH_BYTES = 512 * 1024
_BUFFER_BYTES = 8 * 1024 * 1024
_LINGER_MS = 100
"""More than Kafka's 5: rows come in bulk, dealt out to many partitions, and a task waits for all of them anyway."""
_MAX_INT = 2**31 - 1

_REFUSED = {
    "auto.offset.reset": "where to begin is told by option 'startingOffsets'; later on, the checkpoint knows",
    "enable.auto.commit": "progress is kept in the checkpoint, and shown in a group by option 'group'",
    "interceptor.classes": "there is no Java here to run them",
    "key.deserializer": "keys come as bytes; cast the column instead",
    "value.deserializer": "values come as bytes; cast the column instead",
    "key.serializer": "keys are written as the bytes of their column; cast the column instead",
    "value.serializer": "values are written as the bytes of their column; cast the column instead",
}
_CODECS = {codec.name.lower(): codec for codec in Codec}
_ISOLATIONS = {isolation.name.lower(): isolation for isolation in Isolation}
_ACKS = {"all": ALL, "-1": ALL, "0": 0, "1": 1}


class ProducerSettings(NamedTuple):
    """What a sink hands to the producer and the batches it makes."""

    batching: BatchingSettings
    acks: int = ALL
    delivery_timeout_ms: int = DEFAULT_DELIVERY_TIMEOUT_MS


class ClientOptions:
    """The options with the prefix, by their names without it, and readers that name an option that is wrong.

    Values are checked where they are used: those of the other side are not looked at.
    """

    def __init__(self, options: Mapping[str, str], side: Side) -> None:
        self._options = {
            name[len(PREFIX) :].lower(): value.strip()
            for name, value in options.items()
            if name.lower().startswith(PREFIX)
        }
        for name, why in _REFUSED.items():
            if name in self._options:
                raise OptionError(PREFIX + name, f"it is not supported: {why}")
        check_names(self._options, side, _REFUSED)
        protocol = self._options.get("security.protocol", "PLAINTEXT")
        if protocol.upper() != "PLAINTEXT":
            raise OptionError(PREFIX + "security.protocol", f"{protocol} is not supported, only PLAINTEXT")

    def addresses(self, bare: str | None) -> list[Address]:
        """`bare` is the option bootstrap.servers without the prefix, which is as good."""
        text = self._options.get(BOOTSTRAP, bare)
        if text is None:
            raise OptionError(PREFIX + BOOTSTRAP, "it must be given: HOST:PORT of a broker, several with commas")
        try:
            return parse_bootstrap(text)
        except ValueError as failure:
            raise OptionError(PREFIX + BOOTSTRAP, str(failure)) from failure

    def client(self, client_id: str) -> ClientSettings:
        usual = ClientSettings()
        return ClientSettings(
            client_id=self._options.get("client.id", client_id),
            request_timeout_ms=self._number("request.timeout.ms", usual.request_timeout_ms, 1),
            default_api_timeout_ms=self._number("default.api.timeout.ms", usual.default_api_timeout_ms, 1),
            socket_connection_setup_timeout_ms=self._number(
                "socket.connection.setup.timeout.ms", usual.socket_connection_setup_timeout_ms, 1
            ),
            retry_backoff_ms=self._number("retry.backoff.ms", usual.retry_backoff_ms, 1),
            retry_backoff_max_ms=self._number("retry.backoff.max.ms", usual.retry_backoff_max_ms, 1),
        )

    def fetch(self) -> FetchSettings:
        usual = FetchSettings()
        return FetchSettings(
            fetch_max_wait_ms=self._number("fetch.max.wait.ms", usual.fetch_max_wait_ms, 0),
            fetch_min_bytes=self._number("fetch.min.bytes", usual.fetch_min_bytes, 0),
            fetch_max_bytes=self._number("fetch.max.bytes", usual.fetch_max_bytes, 1),
            max_partition_fetch_bytes=self._number("max.partition.fetch.bytes", _FETCH_BYTES, 1),
            isolation=self._isolation(),
        )

    def producer(self) -> ProducerSettings:
        batching = BatchingSettings(
            batch_size=self._number("batch.size", _BATCH_BYTES, 1),
            linger_ms=self._number("linger.ms", _LINGER_MS, 0),
            buffer_memory=self._number("buffer.memory", _BUFFER_BYTES, 1),
            compression=_one_of(self._options, "compression.type", _CODECS, Codec.NONE),
        )
        delivery_timeout_ms = self._number("delivery.timeout.ms", DEFAULT_DELIVERY_TIMEOUT_MS, 1)
        linger_ms = batching.linger_ms
        if linger_ms >= delivery_timeout_ms:
            if "linger.ms" in self._options:
                told = f"{linger_ms} is not below delivery.timeout.ms = {delivery_timeout_ms}"
                raise OptionError(PREFIX + "linger.ms", told)
            told = f"{delivery_timeout_ms} is not above linger.ms, which is {linger_ms} unless set"
            raise OptionError(PREFIX + "delivery.timeout.ms", told)
        return ProducerSettings(batching, _one_of(self._options, "acks", _ACKS, ALL), delivery_timeout_ms)

    def _isolation(self) -> Isolation:
        return _one_of(self._options, "isolation.level", _ISOLATIONS, Isolation.READ_UNCOMMITTED)

    def _number(self, name: str, usual: int, least: int) -> int:
        text = self._options.get(name)
        if text is None:
            return usual
        if not text.isdecimal() or not least <= int(text) <= _MAX_INT:
            raise OptionError(PREFIX + name, f"{text!r} is not a number from {least} to {_MAX_INT}")
        return int(text)


def _one_of(options: Mapping[str, str], name: str, values: Mapping[str, T], usual: T) -> T:
    text = options.get(name)
    if text is None:
        return usual
    if text.lower() not in values:
        raise OptionError(PREFIX + name, f"{text!r} is not one of {', '.join(values)}")
    return values[text.lower()]
