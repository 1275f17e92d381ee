"""The stories by their names, and how one is told: played by real brokers in a world of its own, frame by frame."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from tidelog.lab.frames import Frame, Strip
from tidelog.lab.group_stage import GroupStage
from tidelog.lab.old_rule import truncation_by_high_watermark
from tidelog.lab.stage import Stage
from tidelog.lab.stories import copying, elections, failures, rebalances
from tidelog.lab.world import World

_SEED = 1
_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Story:
    """A script. `has_old_rule`: it is about truncation, so it can be told with the rule before leader epochs too."""

    name: str
    title: str
    play: Callable[[Stage], Awaitable[None]]
    has_old_rule: bool = False

    async def played(self, world: World, by_epoch: bool) -> list[Frame]:
        stage = Stage(world, by_epoch=by_epoch)
        await self.play(stage)
        return stage.frames


@dataclass(frozen=True, slots=True)
class GroupStory:
    """A script for a consumer group."""

    name: str
    title: str
    play: Callable[[GroupStage], Awaitable[None]]
    has_old_rule: ClassVar[bool] = False

    async def played(self, world: World, by_epoch: bool) -> list[Frame]:
        stage = GroupStage(world)
        await self.play(stage)
        await stage.close()
        return stage.frames


STORIES: dict[str, Story | GroupStory] = {
    story.name: story
    for story in (
        Story("two-replicas", "One record, two replicas: the fetch comes after the produce", copying.two_replicas),
        Story("purgatory", "One record, two replicas: the fetch was there first, and waits", copying.purgatory),
        Story(
            "three-replicas",
            "One record, three replicas: the high watermark waits for the slowest",
            copying.three_replicas,
        ),
        Story("loss", "An acknowledged record is lost, or is not", failures.loss, has_old_rule=True),
        Story(
            "divergence",
            "Two replicas hold different records at one offset, or do not",
            failures.divergence,
            has_old_rule=True,
        ),
        Story(
            "loss-then-divergence",
            "What was lost here and kept there comes to differ, or does not",
            failures.loss_then_divergence,
            has_old_rule=True,
        ),
        Story(
            "unanswered",
            "The leader dies before it answers where the logs part",
            failures.unanswered,
            has_old_rule=True,
        ),
        Story(
            "back-to-back", "Two elections in a row, and a term that one replica never heard of", elections.back_to_back
        ),
        Story("zombie", "A leader that has not heard that it leads no more is fenced", elections.zombie),
        Story("isr", "The ISR shrinks and grows, with min.insync.replicas=2", elections.isr),
        Story("unclean", "Nobody in sync is alive: unclean election off, then on", elections.unclean),
        Story("controller", "The controller falls silent, and another finishes its work", elections.controller),
        GroupStory("rebalance-join", "A consumer joins a stable group", rebalances.joining),
        GroupStory("rebalance-leave", "A consumer leaves its group, and then all do", rebalances.leaving),
        GroupStory("rebalance-crash", "A consumer crashes, and nobody says goodbye", rebalances.crashing),
        GroupStory("rebalance-commit", "What may be committed while a group rebalances", rebalances.committing),
    )
}
"""In the order in which they are best read."""


def tell(story: Story | GroupStory, *, by_epoch: bool = True) -> Strip:
    """The same frames every time."""
    assert by_epoch or story.has_old_rule
    rule = contextlib.nullcontext() if by_epoch else truncation_by_high_watermark()
    with World(_SEED) as world, rule:

        async def whole() -> list[Frame]:
            return await world.host("client").start(story.played(world, by_epoch))

        frames = world.run(whole(), limit_s=_LIMIT_S)
    variant = f"truncation by {'leader epoch' if by_epoch else 'high watermark'}" if story.has_old_rule else ""
    return Strip(story.name, story.title, tuple(frames), variant)
