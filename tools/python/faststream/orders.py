"""An application of FastStream, through either client that it has: it answers orders, one at a time or in lots."""

import os

from faststream import FastStream
from pydantic import BaseModel

if os.environ["CLIENT"] == "confluent":
    from faststream.confluent import KafkaBroker, KafkaResponse
else:
    from faststream.kafka import KafkaBroker, KafkaResponse


class Order(BaseModel):
    number: int
    customer: str


class Answer(BaseModel):
    number: int
    customer: str
    lot: int = 1


broker = KafkaBroker(os.environ["BOOTSTRAP"])
app = FastStream(broker)
reading = {"group_id": os.environ["GROUP"], "auto_offset_reset": "earliest"}

if os.environ["APPLICATION"] == "answers":

    @broker.subscriber(os.environ["ORDERS"], **reading)
    @broker.publisher(os.environ["ANSWERS"])
    async def answer(order: Order):
        return KafkaResponse(Answer(number=order.number, customer=order.customer), key=order.customer.encode())

else:
    answers = broker.publisher(os.environ["ANSWERS"], batch=True)

    @broker.subscriber(os.environ["ORDERS"], batch=True, max_records=50, **reading)
    async def answer_lot(orders: list[Order]) -> None:
        lot = [Answer(number=order.number, customer=order.customer, lot=len(orders)) for order in orders]
        await answers.publish(*lot)
