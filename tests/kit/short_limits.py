"""``ringleader`` that soon gives up what is lost: for tests that look at what follows.

How long a user's commands wait is for a cable that is plugged in again, and no test
that kills a machine learns anything meanwhile.
"""

from __future__ import annotations

from ringleader.cli.main import app
from ringleader.jobs.client.follow_job import JobFollower
from ringleader.node.launch import survival_policy


def main() -> None:
    """Run ``short_limits.py ARGS`` as ``ringleader ARGS``."""
    survival_policy.SILENT_S = 1.0
    defaults = JobFollower.__init__.__kwdefaults__
    assert defaults is not None
    defaults["give_up_s"] = 5.0  # a busy machine answers sooner
    app(prog_name="ringleader")


if __name__ == "__main__":
    main()
