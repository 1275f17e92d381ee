"""Draws the stories of docs/TIDE.md and docs/GROUPS.md anew, into docs/tide."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from tidelog.lab.picture import svg
from tidelog.lab.telling import STORIES, tell

TARGET = Path(__file__).parents[1] / "docs" / "tide"


def main() -> int:
    logging.getLogger("tidelog").addHandler(logging.NullHandler())
    TARGET.mkdir(exist_ok=True)
    for story in STORIES.values():
        (TARGET / f"{story.name}.svg").write_text(svg(tell(story)), encoding="utf-8")
        if story.has_old_rule:
            (TARGET / f"{story.name}-hw.svg").write_text(svg(tell(story, by_epoch=False)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
