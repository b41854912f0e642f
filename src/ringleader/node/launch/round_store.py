"""``RoundStore``: the store of a round for torch's elastic agent, with short waits.

torch's store waits in C++, where no signal handler runs, and knows nothing of machines
that fail or are lost. The elastic agent waits in it for the ranks, and torchrun's also
at the end of the job, for 300 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistStoreError

from ringleader.deadline import Deadline
from ringleader.errors import RingleaderError
from ringleader.node.protocol.local_requests import RoundStatus

POLL_S = 0.02
CHECK_EVERY_S = 0.5


class RoundStore(PrefixStore):
    """A store whose waits end with the round.

    They raise ``DistStoreError`` when the round is over or the time is, and whatever
    ``check_round`` raises.
    """

    def __init__(self, store: Store, check_round: Callable[[], RoundStatus]) -> None:
        super().__init__("ringleader/agents", store)
        self._check_round = check_round

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all ``keys`` are set."""
        limit: timedelta = timeout or self.timeout  # type: ignore[attr-defined]
        limit_s = limit.total_seconds()
        deadline = Deadline.after(limit_s)
        next_check = Deadline.after(CHECK_EVERY_S)
        while not self.check(keys):
            if deadline.is_over():
                raise DistStoreError(f"{', '.join(keys)}: not set within {limit_s:g} s")
            if next_check.is_over():
                next_check = Deadline.after(CHECK_EVERY_S)
                self._end_with_round()
            time.sleep(POLL_S)

    def get(self, key: str) -> bytes:
        """Return the value of ``key`` as soon as it is set."""
        self.wait([key])
        return super().get(key)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of ``keys`` as soon as all are set."""
        self.wait(keys)
        return super().multi_get(keys)

    def _end_with_round(self) -> None:
        try:
            status = self._check_round()
        except RingleaderError:
            return  # without an agent the workers may still finish
        if status.is_stale:
            raise DistStoreError(f"the round is over: {status.reason}")
