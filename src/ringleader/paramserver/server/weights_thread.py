"""The thread for weights and files. The first error in it ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from ringleader.errors import InternalError, ProtocolError, RingleaderError

_T = TypeVar("_T")
_P = ParamSpec("_P")


class WeightsThread:
    """Makes calls one after the other, so the event loop never waits for them."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self.failure: RingleaderError | None = None
        """The error that ended the run, such as a full disk."""
        self._on_failure = on_failure
        self._executor = ThreadPoolExecutor(1, "ringleader-weights")

    async def run(
        self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Make a call; any error but ProtocolError ends the run."""
        if self.failure is not None:
            raise self.failure
        loop = asyncio.get_running_loop()
        future = self._executor.submit(call, *args, **kwargs)
        try:
            return await asyncio.wrap_future(future, loop=loop)
        except ProtocolError:
            raise
        except Exception as exc:  # noqa: BLE001 - it may have made half a change
            failure = self.fail(exc)
        raise failure

    def fail(self, exc: Exception) -> RingleaderError:
        """End the run: the state may hold half a change, or lack what was recorded."""
        if self.failure is None:
            if not isinstance(exc, RingleaderError):
                exc = InternalError(f"serving failed: {exc!r}")
            self.failure = exc
            self._on_failure()
        return self.failure

    def close(self) -> None:
        """Wait for the last call and end the thread."""
        self._executor.shutdown()
