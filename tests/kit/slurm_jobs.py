"""Jobs of Slurm whose ports (settings/slurm.py) no other test takes meanwhile."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

from ringleader.settings import slurm
from ringleader.transport import free_ports


def job_with_a_free_port() -> int:
    """The number of a job whose first step meets at a port of this worker's share."""
    places = range(slurm.FIRST_PORT, slurm.FIRST_PORT + slurm.NUM_PORTS)
    mine = [port for port in free_ports._PORTS if port in places]
    random.shuffle(mine)
    for port in mine:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            back = pow(slurm.STEPS, -1, slurm.NUM_PORTS)
            job = (port - slurm.FIRST_PORT) * back % slurm.NUM_PORTS
            return job or slurm.NUM_PORTS  # no job has the number 0
    raise AssertionError("all ports are taken")
