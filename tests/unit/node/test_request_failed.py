"""An error of the agent is raised by the process that asked, as what it was."""

from __future__ import annotations

import msgspec
import pytest

from ringleader import errors
from ringleader.errors import PeerError, RingleaderError
from ringleader.node.protocol.local_requests import RequestFailed

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, RingleaderError)
    and kind not in (RingleaderError, PeerError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_the_way(kind: type[RingleaderError]) -> None:
    args = ("m2", "is late") if issubclass(kind, PeerError) else ("is wrong",)
    error = kind(*args)
    message = msgspec.json.encode(RequestFailed.of(error))
    again = msgspec.json.decode(message, type=RequestFailed).to_error()
    assert (type(again), again.args, str(again)) == (kind, error.args, str(error))


def test_a_bug_of_the_agent_is_told_as_one() -> None:
    error = RequestFailed.of(KeyError("x")).to_error()
    assert (type(error), str(error)) == (errors.InternalError, "KeyError: 'x'")
