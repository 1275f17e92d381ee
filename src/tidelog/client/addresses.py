"""Where to begin: bootstrap addresses as people write them; and whom to ask next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

Address: TypeAlias = tuple[str, int]

DEFAULT_PORT = 9092
_FAILED_S = 30.0
_MOST_FORMER = 16


def parse_bootstrap(text: str) -> list[Address]:
    """`HOST:PORT`, several with commas, IPv6 in brackets; ValueError says which part is none."""
    addresses = [_parse(part.strip()) for part in text.split(",") if part.strip()]
    if not addresses:
        raise ValueError("no address given; write HOST:PORT, several with commas between them")
    return addresses


def _parse(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} is not HOST:PORT; an IPv6 address stands in brackets, [::1]:9092")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def address_text(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class KnownBrokers(NamedTuple):
    """Brokers that were met before: where to ask if no bootstrap address answers. Current brokers come first."""

    addresses: tuple[Address, ...] = ()
    cluster_id: str | None = None
    """The cluster that they belong to; None if it did not tell."""


NONE_KNOWN = KnownBrokers()


class LastAsked:
    """When each address was asked something that any broker can answer: the one that was asked longest ago is next.

    An address that failed counts as asked later than it was, so others come before it for a while.
    """

    def __init__(self) -> None:
        self._asked_s: dict[Address, float] = {}

    def asked(self, address: Address, now_s: float) -> None:
        self._asked_s[address] = now_s

    def failed(self, address: Address, now_s: float) -> None:
        self._asked_s[address] = now_s + _FAILED_S

    def __call__(self, address: Address) -> float:
        """The key by which addresses are sorted. Those that were never asked are equal and come first."""
        return self._asked_s.get(address, -math.inf)


class FormerAddresses:
    """The addresses of brokers that metadata named before and does not name now, newest first, at most 16.

    A client that forgot them could be lost after a rolling restart: the only broker that it knows goes away while those
    that were away before are back. It may begin with brokers that were met before it was made, however many.
    """

    def __init__(self, known: Iterable[Address] = ()) -> None:
        self._addresses = list(known)

    def learnt(self, before: Iterable[Address], now: Iterable[Address]) -> None:
        """Metadata named these brokers before its last answer, and names those now."""
        named = set(now)
        addresses = dict.fromkeys([*before, *self._addresses])
        self._addresses = [address for address in addresses if address not in named][:_MOST_FORMER]

    def __iter__(self) -> Iterator[Address]:
        return iter(self._addresses)
