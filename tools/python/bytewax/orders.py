"""Dataflows of bytewax: they answer orders or count them by customer, and end at the end of the topic."""

import json
import os

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow

BROKERS = [os.environ["BOOTSTRAP"]]


def count(total, order):
    total = (total or 0) + 1
    return total, {**order, "total": total}


def message(keyed):
    customer, answer = keyed
    return KafkaSinkMessage(customer.encode(), json.dumps(answer).encode())


flow = Dataflow("orders")
source = kop.input("orders", flow, brokers=BROKERS, topics=[os.environ["ORDERS"]], tail=False)
op.raises("errors", source.errs)
orders = op.map("parse", source.oks, lambda record: (record.key.decode(), json.loads(record.value)))
if os.environ["APPLICATION"] == "counts":
    orders = op.stateful_map("count", orders, count)
kop.output("answers", op.map("message", orders, message), brokers=BROKERS, topic=os.environ["ANSWERS"])
