"""``ringleader doctor`` with patience: its own limits suit a machine that is idle.

Answers of nodes that share two cores with other tests may take seconds; a doctor that
does not wait for them finds troubles that nobody has. The rules with
their own figures have unit tests.
"""

from __future__ import annotations

from ringleader.cli.main import app
from ringleader.doctor import examine, link_measurement, node_search
from ringleader.doctor.rules import link_speed
from ringleader.node.peering import status_query

SECONDS = 60.0
"""Time of a whole examination."""


def main() -> None:
    """Run ``patient_doctor.py ARGS`` as ``ringleader ARGS``."""
    defaults = examine.Request.__init__.__kwdefaults__
    assert defaults is not None
    defaults["seconds"] = SECONDS
    status_query.QUERY_S = SECONDS
    link_measurement.TURN_S = 15.0
    link_measurement.LIMIT_S = 3.5  # less than the limit of the other side: 8 s
    node_search.RESOLVE_S = 15.0
    node_search.LISTEN_S = node_search.LISTEN_AGAIN_S = 4.0
    link_speed.SLOW_BYTES_PER_S = 25e6 / 8
    link_speed.FAR_S, link_speed.SHARE = 0.5, 1 / 100
    app(prog_name="ringleader")


if __name__ == "__main__":
    main()
