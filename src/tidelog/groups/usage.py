"""What the groups of one broker keep, counted, so that it can be bounded: it outlives the connections that made it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.groups.story import Story

if TYPE_CHECKING:
    from tidelog.groups.timers import Timer

GROUPS_MAX = "tidelog.broker.groups.max"
MEMBERS_MAX_BYTES = "tidelog.broker.members.max.bytes"
OFFSETS_MAX = "tidelog.broker.offsets.max"
METADATA_MAX_BYTES = "tidelog.broker.offset.metadata.max.bytes"
"""The settings that a refusal names."""


def _ignore(setting: str) -> None:
    """Without a broker there is no log to write to."""


@dataclass(slots=True)
class Usage:
    """Shared by all `Groups` of a broker. What a log holds is counted but never refused."""

    groups: int = 0
    pending: OrderedDict[Timer, None] = field(default_factory=OrderedDict)
    """The timers of all pending member ids of the broker, the oldest first."""
    member_bytes: int = 0
    """About what members take, with their protocols and assignments."""
    offsets: int = 0
    metadata_bytes: int = 0
    """Of the metadata that was committed with offsets."""
    refused: int = 0
    """Requests that were refused because one of the others had reached its bound."""
    evicted_ids: int = 0
    """Pending member ids that made room for newer ones."""
    on_refusal: Callable[[str], None] = field(default=_ignore, compare=False)
    """Hears which setting a request was refused for."""
    story: Story = field(default_factory=Story, compare=False)
    """Hears what happens to the groups."""

    @property
    def pending_ids(self) -> int:
        return len(self.pending)

    def has_room(self, used: int, most: int, setting: str) -> bool:
        """Whether `used` may become more. Counts and tells a refusal if not."""
        if used < most:
            return True
        self.refuse(setting)
        return False

    def refuse(self, setting: str) -> None:
        self.refused += 1
        self.on_refusal(setting)
