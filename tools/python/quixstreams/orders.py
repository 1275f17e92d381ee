"""Applications of Quix Streams: they answer orders, count them by customer, and count by product in windows."""

import os
from datetime import timedelta

from quixstreams import Application, State

app = Application(
    broker_address=os.environ["BOOTSTRAP"],
    consumer_group=os.environ["GROUP"],
    auto_offset_reset="earliest",
    state_dir=os.environ["STATE"],
    commit_interval=0.5,
    processing_guarantee="at-least-once",
    loglevel="INFO",
)
orders = app.dataframe(app.topic(os.environ["ORDERS"], value_deserializer="json"))
answers = app.topic(os.environ["ANSWERS"], value_serializer="json")


def count(order: dict, state: State) -> dict:
    total = state.get("total", 0) + 1
    state.set("total", total)
    return {**order, "total": total}


if os.environ["APPLICATION"] == "answers":
    orders.to_topic(answers)
elif os.environ["APPLICATION"] == "counts":
    orders.apply(count, stateful=True).to_topic(answers)
else:
    # What comes much later closes every window before it.
    windows = orders.group_by("product").tumbling_window(timedelta(minutes=1)).count().final()
    windows.to_topic(answers)

if __name__ == "__main__":
    app.run()
