"""`python -m peers`: fetch and compile; says in one sentence what is missing if it cannot.

With --tools also what is built on clients: applications and tools that a full conformance run plays.
"""

import sys

from peers import connect, fetch, franz, home, kafkajs, kcat, python_tools, spark_connector

try:
    fetch.fetch_all()
    kcat.fetch()
    franz.fetch()
    kafkajs.fetch()
    spark_connector.fetch()
    if "--tools" in sys.argv[1:]:
        connect.fetch()
        python_tools.fetch()
except home.PeersMissingError as error:
    sys.exit(str(error))
