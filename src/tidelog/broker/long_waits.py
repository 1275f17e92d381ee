"""Requests of which only waiting is left: their change is made, and what they wait for may take as long as they allow.

Such a request needs neither its bytes nor its place among the large ones (`large_requests`). It waits for a future. If
the client goes, or if too much waits like this, the wait is given up, as if its time were over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

GiveUp: TypeAlias = Callable[[], object]

Waits: TypeAlias = Callable[[GiveUp], AbstractContextManager[None]]
"""Whoever waits for a request does so within what this gives, and says how the wait can be given up."""


def alone(give_up: GiveUp) -> AbstractContextManager[None]:
    """Nothing gives the wait up."""
    return nullcontext()
