"""``note_broken_servers``: learns that gRPC's asyncio server has ended by itself.

One call whose path is no text ends it (grpcio 1.85.1): the path is decoded in the loop
that accepts calls. Anybody who can connect may send one, so whoever runs such a server
stops it then and starts another. Nobody waits for that loop, and
``wait_for_termination`` goes on, so its error reaches the event loop only.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

_ACCEPTING = "_server_main_loop"


def note_broken_servers() -> asyncio.Event:
    """Return what is set whenever a server of this event loop has ended by itself."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    broken = asyncio.Event()

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if _is_of_accepting(context.get("exception")):
            broken.set()
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(note)
    return broken


def _is_of_accepting(error: BaseException | None) -> bool:
    if not isinstance(error, UnicodeDecodeError):
        return False
    return traceback.extract_tb(error.__traceback__)[-1].name.endswith(_ACCEPTING)
