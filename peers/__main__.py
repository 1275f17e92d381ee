"""`python -m peers`: fetch and compile; says in one sentence what is missing if it cannot."""

import sys

from peers import connect, fetch, franz, home, kafkajs, kcat, python_tools, spark_connector

try:
    fetch.fetch_all()
    connect.fetch()
    kcat.fetch()
    franz.fetch()
    kafkajs.fetch()
    python_tools.fetch()
    spark_connector.fetch()
except home.PeersMissingError as error:
    sys.exit(str(error))
