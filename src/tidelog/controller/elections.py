"""Who leads a partition (S6).

One rule for every occasion: brokers died, came or bounced, a log directory failed, a controller took over. Given who
is in the ISR and who can be reached, it says who leads from now on and what the ISR is; asked again with its own
answer it gives the same one, so it may be asked as often as one likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog.controller.image import NO_LEADER
from tidelog.types import BrokerId


class Election(NamedTuple):
    leader: BrokerId
    isr: tuple[BrokerId, ...]
    is_unclean: bool = False
    """The leader was not in sync: what the ISR had and it lacks is lost (S6.2)."""


def first_leader(replicas: Sequence[BrokerId], is_online: Callable[[BrokerId], bool]) -> Election | None:
    """For a new partition: all replicas that can be reached are in sync, being empty. None if there is none."""
    online = tuple(filter(is_online, replicas))
    return Election(online[0], online) if online else None


def elect(
    leader: BrokerId,
    isr: Sequence[BrokerId],
    replicas: Sequence[BrokerId],
    is_online: Callable[[BrokerId], bool],
    has_bounced: Callable[[BrokerId], bool],
    unclean: bool,
) -> Election:
    """The leader stays if it can; else it is the first ISR member, in the order of the replicas, that is fit (S6.1).

    A member that has bounced since the ISR was written may have lost what it had not synced: it leaves an ISR that
    has another member, and comes back by fetching (edge case 9). If all members have, one of them must lead.
    """
    online = [member for member in isr if is_online(member)]
    fit = tuple(member for member in online if not has_bounced(member))
    if fit:
        return Election(leader if leader in fit else _first(replicas, fit), fit)
    waited_for = tuple(member for member in isr if member not in online)
    if online and not waited_for:
        chosen = _first(replicas, online)
        return Election(chosen, (chosen,))
    candidates = [replica for replica in replicas if is_online(replica)]
    if unclean and candidates:
        chosen = _first(replicas, online or candidates)
        return Election(chosen, (chosen,), is_unclean=True)
    return Election(NO_LEADER, waited_for or tuple(isr))


def _first(replicas: Sequence[BrokerId], among: Sequence[BrokerId]) -> BrokerId:
    """An ISR member that is not a replica should not be; it comes last."""
    return next((replica for replica in replicas if replica in among), among[0])
