"""The messages of the protocol: strict requests, and schemas for the OpenAPI page."""

from __future__ import annotations

import json

import msgspec
import pytest

from ringleader.paramserver.protocol import messages
from ringleader.paramserver.protocol.messages import (
    Assignment,
    ErrorAnswer,
    JoinRequest,
    PairRequest,
    UpdateAnswer,
    decode_message,
    encode_message,
)
from ringleader.paramserver.protocol.openapi import DESCRIPTION


@pytest.mark.parametrize(
    "text",
    [
        '{"task": {}, "recipt": "misspelled"}',
        '{"task": {"code": 1}}',
        '{"task": {}, "nonce": "0123"}',
        '{"task": {}, "name": null}',
        '{"code": "without a task"}',
        json.dumps({"task": {str(i): "" for i in range(33)}}),
        json.dumps({"task": {}, "code": "x" * 257}),
        json.dumps({"task": {}, "nonce": "0" * 32 + "\n"}),
    ],
)
def test_an_invalid_request_to_join_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        decode_message(text.encode(), JoinRequest)
    assert len(str(caught.value)) <= 300


def test_fields_that_are_not_set_are_not_sent() -> None:
    assert encode_message(JoinRequest(task={}, code="x")) == b'{"task":{},"code":"x"}'
    answer = UpdateAnswer(counted=True, version=3)
    assert encode_message(answer) == b'{"counted":true,"version":3}'
    error = ErrorAnswer(error="stale", message="late", version=0)
    assert encode_message(error) == (b'{"error":"stale","message":"late","version":0}')


def test_both_ends_agree_on_a_message() -> None:
    sent = Assignment(
        version=1, shard=0, shards=2, first_batch=4, steps=1, batch_size=8, lr=2.0
    )
    answer: messages.WorkAnswer = decode_message(
        encode_message(sent),
        messages.WorkAnswer,  # type: ignore[arg-type]
    )
    assert answer == sent
    pair = PairRequest(element="abc")
    assert decode_message(encode_message(pair), PairRequest) == pair


def test_the_openapi_page_has_the_schema_of_every_message() -> None:
    structs = {
        name
        for name, value in vars(messages).items()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and not name.startswith("_")
    }
    assert DESCRIPTION["components"]["schemas"].keys() == structs


def test_the_openapi_page_has_both_schemes_of_authorization() -> None:
    schemes = DESCRIPTION["components"]["securitySchemes"]
    assert {s["scheme"].lower() for s in schemes.values()} == {"bearer", "join"}
    for path in ("/v1/status", "/v1/openapi.json", "/v1/pair"):
        for operation in DESCRIPTION["paths"][path].values():
            assert {} in operation["security"], "anybody may ask"
            assert {"join": []} in operation["security"]
