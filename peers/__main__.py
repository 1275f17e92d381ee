"""`python -m peers`: fetch and compile; says in one sentence what is missing if it cannot."""

import sys

from peers import fetch, home

try:
    fetch.fetch_all()
except home.PeersMissingError as error:
    sys.exit(str(error))
