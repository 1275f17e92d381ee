"""The table of Kafka's APIs, and the way from a name or key to the classes. Families are imported when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from importlib import import_module

from tidelog.wire.messages.index import APIS, MODULE_OF
from tidelog.wire.schema import Message
from tidelog.wire.versions import Versions

PRODUCE, FETCH = 0, 1
API_VERSIONS = 18
CONTROLLED_SHUTDOWN = 7


class Api:
    """One kind of request and its response. The versions are all that can be encoded, not what a broker offers."""

    def __init__(self, key: int, name: str, first: int, last: int, flexible_from: int) -> None:
        self.key = key
        self.name = name
        self.versions = Versions(first, last)
        self.flexible_from = flexible_from

    @cached_property
    def request(self) -> type[Message]:
        return message_class(self.name + "Request")

    @cached_property
    def response(self) -> type[Message]:
        return message_class(self.name + "Response")

    def request_header_version(self, version: int) -> int:
        """2 is flexible; 0, without a client id, belongs to the first ControlledShutdown alone."""
        if version >= self.flexible_from:
            return 2
        return 0 if self.key == CONTROLLED_SHUTDOWN and version == 0 else 1

    def response_header_version(self, version: int) -> int:
        """1 is flexible. ApiVersions keeps 0: its response is read before it is known what the broker speaks."""
        return 1 if version >= self.flexible_from and self.key != API_VERSIONS else 0

    def __repr__(self) -> str:
        return f"<Api {self.key} {self.name} {self.versions}>"


API = {row[0]: Api(*row) for row in APIS}
"""By key, ascending."""


def message_class(name: str) -> type[Message]:
    """The class of a request, response, header or record by Kafka's name for it."""
    found: type[Message] = getattr(import_module(f"tidelog.wire.messages.{MODULE_OF[name]}"), name)
    return found


def all_messages() -> Iterator[type[Message]]:
    """Every message, by name; inner structs are reached through their fields."""
    return map(message_class, MODULE_OF)
