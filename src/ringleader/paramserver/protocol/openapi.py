"""The OpenAPI description of the protocol, with the schemas of its messages."""

from __future__ import annotations

from typing import Any

import msgspec

from ringleader.paramserver.protocol import bodies, compressed_body, messages
from ringleader.paramserver.protocol.join_link import JOIN_SCHEME

_MESSAGES = (
    messages.PairRequest,
    messages.PairAnswer,
    messages.JoinRequest,
    messages.JoinAnswer,
    messages.Assignment,
    messages.Finished,
    messages.UpdateAnswer,
    messages.ErrorAnswer,
    messages.Status,
)
_TENSORS = {"application/octet-stream": {"schema": {"type": "string"}}}
_NUMBER = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _NUMBER}


def _header(name: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": required, "schema": schema}


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _reference(message: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{message.__name__}"}


def _json(*kinds: type[msgspec.Struct]) -> dict[str, Any]:
    """The content of a body that is one of these messages."""
    references = [_reference(kind) for kind in kinds]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    return {"application/json": {"schema": schema}}


def _answer(text: str, *kinds: type[msgspec.Struct]) -> dict[str, Any]:
    return {"description": text, "content": _json(*kinds)}


def _answers(**texts: str) -> dict[str, Any]:
    """Answers without content by status, as in c204="gone"; errors have a message."""
    return {
        code[1:]: {"description": text}
        | ({"content": _json(messages.ErrorAnswer)} if code > "c4" else {})
        for code, text in texts.items()
    }


_UPDATE = [
    _path("version"),
    _path("shard"),
    _header("X-First-Batch", _NUMBER, required=True),
    _header("X-Worker-Version", _NUMBER, required=False),
]
_PUT = [
    *_UPDATE,
    _header("X-Samples", {"type": "integer", "minimum": 1}, required=True),
    _header("X-Loss", {"type": "number"}, required=True),
    _header("X-Compute-Seconds", {"type": "number", "minimum": 0}, required=False),
    _header("X-Codec", {"enum": list(bodies.CODECS)}, required=False),
    _header("Upload-Offset", _NUMBER, required=False),
    _header("Upload-Length", _NUMBER, required=False),
]
_REFUSED = {"c401": "unknown token", "c403": "quarantined", "c429": "too many requests"}
_SCHEMAS = msgspec.json.schema_components(
    _MESSAGES, ref_template="#/components/schemas/{name}"
)[1]

_OPTIONAL: list[dict[str, list[str]]] = [{}, {"join": []}, {"token": []}]
"""Anybody may ask; who authenticates is not limited together with strangers."""

_READERS: list[dict[str, list[str]]] = [{"join": []}, {"token": []}, {}]
"""The code of the join link, a token, or the PIN in a header."""
_NOT_READ = {
    "c401": "unknown code or PIN",
    "c403": "no PIN attempts are left",
    "c404": "no such data",
    "c429": "too many requests",
}

DESCRIPTION: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Ringleader over the internet", "version": "1"},
    "components": {
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer"},
            "join": {
                "type": "http",
                "scheme": JOIN_SCHEME,
                "description": "The code of the join link, before joining: such a "
                "request is not limited together with strangers of its address.",
            },
        },
        "schemas": _SCHEMAS,
    },
    "security": [{"token": []}],
    "paths": {
        "/": {
            "get": {
                "security": _OPTIONAL,
                "responses": _answers(c200="the status page"),
            },
        },
        "/metrics": {
            "get": {
                "security": _OPTIONAL,
                "responses": _answers(c200="numbers in the text format of Prometheus"),
            },
        },
        "/v1/status": {
            "get": {
                "security": _OPTIONAL,
                "responses": {"200": _answer("the run", messages.Status)},
            },
        },
        "/v1/openapi.json": {
            "get": {
                "security": _OPTIONAL,
                "responses": _answers(c200="this description"),
            },
        },
        "/v1/pair": {
            "post": {
                "security": _OPTIONAL,
                "requestBody": {
                    "required": True,
                    "content": _json(messages.PairRequest),
                },
                "responses": {
                    "200": _answer(
                        "content that opens with the right PIN only",
                        messages.PairAnswer,
                    ),
                    **_answers(
                        c400="malformed",
                        c401="this server has no PIN",
                        c403="no PIN attempts are left",
                        c413="too large",
                        c429="too many requests",
                    ),
                },
            }
        },
        "/v1/join": {
            "post": {
                "security": _OPTIONAL,
                "parameters": [_header("X-Auth-Pin", _TEXT, required=False)],
                "requestBody": {
                    "required": True,
                    "content": _json(messages.JoinRequest),
                },
                "responses": {
                    "200": _answer(
                        "a token and the settings of the run", messages.JoinAnswer
                    ),
                    **_answers(
                        c400="malformed",
                        c401="unknown code or PIN",
                        c403="no PIN attempts are left",
                        c412="another task",
                        c429="too many requests",
                        c503="too many workers",
                    ),
                },
            }
        },
        "/v1/leave": {
            "post": {"responses": _answers(c204="the worker has left", **_REFUSED)}
        },
        "/v1/work": {
            "get": {
                "parameters": [
                    _query("wait", {"type": "number", "minimum": 0, "maximum": 30})
                ],
                "responses": {
                    "200": _answer(
                        "an assignment, or the end of training",
                        messages.Assignment,
                        messages.Finished,
                    ),
                    **_answers(c204="nothing yet: ask again", **_REFUSED),
                },
            }
        },
        "/v1/weights/{version}": {
            "get": {
                "parameters": [
                    _path("version"),
                    _query("codec", {"enum": list(bodies.WEIGHTS_CODECS)}),
                    _query("frame", {"enum": list(compressed_body.FRAMES)}),
                ],
                "responses": {
                    "200": {"description": "safetensors", "content": _TENSORS},
                    "206": {"description": "the rest of it", "content": _TENSORS},
                    **_answers(c304="unchanged", c409="stale", **_REFUSED),
                },
            }
        },
        "/v1/data": {
            "get": {
                "security": _READERS,
                "parameters": [_header("X-Auth-Pin", _TEXT, required=False)],
                "responses": _answers(
                    c200="names, sizes and hashes of the task's files", **_NOT_READ
                ),
            }
        },
        "/v1/data/{chunk}": {
            "get": {
                "security": _READERS,
                "parameters": [
                    _path("chunk"),
                    _header("X-Auth-Pin", _TEXT, required=False),
                ],
                "responses": {
                    "200": {"description": "bytes of a file", "content": _TENSORS},
                    **_answers(c400="malformed", **_NOT_READ),
                },
            }
        },
        "/v1/updates/{version}/{shard}": {
            "head": {
                "parameters": _UPDATE,
                "responses": _answers(c204="Upload-Offset", c409="stale", **_REFUSED),
            },
            "put": {
                "parameters": _PUT,
                "requestBody": {"required": True, "content": _TENSORS},
                "responses": {
                    "200": _answer("counted, now or before", messages.UpdateAnswer),
                    **_answers(
                        c202="a part has arrived: send the rest",
                        c400="malformed",
                        c408="too slow",
                        c409="stale or finished",
                        c411="no length",
                        c413="too large",
                        c416="resume at another offset",
                        c422="the update failed a check",
                        c503="too many uploads",
                        **_REFUSED,
                    ),
                },
            },
        },
    },
}
