"""When a broker's process looks for garbage in cycles.

A full collection walks all objects that were made since the start: about 10 ms for each 100,000 of them, during which
nothing is served. Python begins one when enough objects have survived, and a few large requests make so many. So full
collections are left to a timer. What is not in a cycle is freed at once in any case, and most cycles die young.
"""

from __future__ import annotations

import asyncio
import gc

_YOUNG_OBJECTS = 10_000
"""The hot path makes no cycles, so it is not worth looking for them often."""
_YOUNG_COLLECTIONS = 3
_NEVER = 1 << 30
_FULL_EVERY_S = 600.0
_WORTH_IT = 10
"""Collections of the middle generation since the last full one, below which little can have become garbage."""


def settle() -> None:
    """After the start: what is there now stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _NEVER)


async def collect_now_and_then() -> None:
    """For as long as the broker runs."""
    while True:
        await asyncio.sleep(_FULL_EVERY_S)
        if gc.get_count()[2] >= _WORTH_IT:
            gc.collect()
