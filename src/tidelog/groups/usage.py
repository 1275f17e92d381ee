"""What the groups of one broker keep, counted, so that it can be bounded: it outlives the connections that made it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Usage:
    """Shared by all `Groups` of a broker. What a log holds is counted but never refused."""

    groups: int = 0
    pending_ids: int = 0
    offsets: int = 0
    metadata_bytes: int = 0
    """Of the metadata that was committed with offsets."""
    refused: int = 0
    """Requests that were refused because one of the others had reached its bound."""

    def has_room(self, used: int, most: int) -> bool:
        """Counts a refusal if not."""
        if used < most:
            return True
        self.refused += 1
        return False
