"""Which connections have to make room, because others have waited for it for too long.

Those that do not read their answers are the first, beginning with the one that has been so for the longest time: their
answers hold room, and so do the requests that wait behind them. Half-read requests follow, the least progressed first.

Brokers do not wait for the room that answers take, so unread answers to brokers have a bound by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.net.asks import Kind
from tidelog.net.share import LARGE_PART, SMALL_STEP_BYTES, Share

if TYPE_CHECKING:
    from tidelog.net.connection import ServerConnection

_STANDSTILL = 3
"""If no request has got room for so many times the patience, even requests that come on have to make room."""


def in_the_way(share: Share, now_ns: int, patience_ns: int) -> list[ServerConnection]:
    """Connections of this share that are to be closed.

    Large requests that wait until complete ones are handled do not need the room of half-read ones.
    """
    before_ns = now_ns - patience_ns
    overdue = [ask for ask in share.waiting.by_connection.values() if ask.since_ns <= before_ns]
    small = SMALL_STEP_BYTES * sum(ask.since_ns <= before_ns for ask in share.paused.by_connection.values())
    large = sum(ask.size for ask in overdue if ask.kind is Kind.LARGE)
    wanted = sum(ask.size for ask in overdue) - (0 if share.is_open_to_large else large)
    excess = share.held - share.limit
    missing = wanted + small + excess if wanted or small else 0
    if large:
        missing = max(missing, large + share.large - share.limit // LARGE_PART)
    if share.is_of_brokers:
        missing = max(missing, share.answers - share.limit)
    found = _behind(share, before_ns, missing)
    if wanted:
        freed = sum(connection.granted + connection.releasable_bytes for connection in found)
        found += _half_read(share, now_ns, patience_ns, wanted + excess - freed, set(found))
    return found


def _behind(share: Share, before_ns: int, missing: int) -> list[ServerConnection]:
    """Those that have not taken their answers since then, until they hold so much; the first is the one that has been
    so for the longest time."""
    found: list[ServerConnection] = []
    if missing <= 0:
        return found
    since_ns = {known: known.behind_since(untaken_ns) for known, untaken_ns in share.untaken.items()}
    late = [known for known in since_ns if since_ns[known] <= before_ns]
    for connection in sorted(late, key=lambda known: since_ns[known]):
        if missing <= 0:
            break
        missing -= connection.granted + connection.releasable_bytes
        found.append(connection)
    return found


def _half_read(
    share: Share, now_ns: int, patience_ns: int, missing: int, closed: set[ServerConnection]
) -> list[ServerConnection]:
    """Connections whose half-read requests have to make room.

    Requests that are read from and do not come on are the first. A request that waits for room itself can do nothing
    about it: it makes room only if none got any for so long, half-read requests hold most of it, and the one that
    exceeds the share does not come on either. If that lasts, all have to, and that one first.
    """
    before_ns = now_ns - patience_ns
    stands_ns = 0 if share.unfinished < share.held - share.unfinished else now_ns - share.moved_ns
    exceeding, is_stuck = share.exceeding, stands_ns >= _STANDSTILL * patience_ns
    is_moving = stands_ns < patience_ns or (exceeding is not None and exceeding.came_on_ns > before_ns)
    found: list[ServerConnection] = []
    for connection in sorted(
        (known for known in share.half_read if known.granted and known not in closed),
        key=lambda known: (not is_stuck or known is not exceeding, known.came_on_ns),
    ):
        if missing <= 0:
            break
        ask = share.waiting.by_connection.get(connection)
        if is_stuck or (connection.came_on_ns <= before_ns and (ask is None or not is_moving)):
            missing -= connection.granted + (0 if ask is None else ask.size)
            found.append(connection)
    return found
