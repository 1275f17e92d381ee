"""Chance that a seed decides."""

from __future__ import annotations

import hashlib
import random


def stream(seed: int, name: str) -> random.Random:
    """The random numbers of one consumer, by its name.

    Each has its own stream, so that a new consumer, or one that draws more often, does not change what the
    others see. Derived with a real hash: Python's own differs from process to process.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))
