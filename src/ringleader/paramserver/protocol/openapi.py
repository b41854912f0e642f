"""The protocol for programs: OpenAPI, the same facts as docs/internet-protocol.md."""

from __future__ import annotations

from typing import Any

from ringleader.paramserver.protocol import bodies

_TENSORS = {"application/octet-stream": {"schema": {"type": "string"}}}
_NUMBER = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _NUMBER}


def _header(name: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": required, "schema": schema}


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"application/json": {"schema": schema}}


def _answers(**texts: str) -> dict[str, Any]:
    """Answers by code, as in c200="counted"; errors all look alike."""
    return {
        code[1:]: {"description": text}
        | ({"content": {"application/json": {"schema": _ERROR}}} if code > "c4" else {})
        for code, text in texts.items()
    }


_ERROR = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {"error": _TEXT, "message": _TEXT, "version": _NUMBER},
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
    _header("X-Codec", {"enum": list(bodies.CODECS)}, required=False),
    _header("Upload-Offset", _NUMBER, required=False),
    _header("Upload-Length", _NUMBER, required=False),
]
_JOIN = _object(
    code=_TEXT,
    pin=_TEXT,
    name=_TEXT,
    device=_TEXT,
    nonce={"type": "string", "pattern": "^[0-9a-f]{32}$"},
    receipt=_TEXT,
    task={"type": "object", "additionalProperties": _TEXT},
)
_REFUSED = {"c401": "no known token", "c403": "quarantined", "c429": "too many"}

DESCRIPTION: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Ringleader over the internet", "version": "1"},
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    "security": [{"token": []}],
    "paths": {
        "/": {
            "get": {"security": [], "responses": _answers(c200="the status page")},
        },
        "/v1/status": {
            "get": {"security": [], "responses": _answers(c200="the run as JSON")},
        },
        "/v1/openapi.json": {
            "get": {"security": [], "responses": _answers(c200="this description")},
        },
        "/v1/pair": {
            "post": {
                "security": [],
                "requestBody": {"required": True, "content": _object(element=_TEXT)},
                "responses": {
                    "200": {
                        "description": "what opens with the right PIN only",
                        "content": _object(element=_TEXT, sealed=_TEXT),
                    },
                    **_answers(
                        c400="malformed",
                        c401="this server has no PIN",
                        c403="PIN guesses are used up",
                        c413="too large",
                        c429="too many requests",
                    ),
                },
            }
        },
        "/v1/join": {
            "post": {
                "security": [],
                "parameters": [_header("X-Auth-Pin", _TEXT, required=False)],
                "requestBody": {"required": True, "content": _JOIN},
                "responses": _answers(
                    c200="a token and the settings of the run",
                    c400="malformed",
                    c401="code or PIN not known",
                    c403="PIN guesses are used up",
                    c412="another task",
                    c429="too many requests",
                    c503="too many workers",
                ),
            }
        },
        "/v1/leave": {"post": {"responses": _answers(c204="gone", **_REFUSED)}},
        "/v1/work": {
            "get": {
                "parameters": [
                    _query("wait", {"type": "number", "minimum": 0, "maximum": 30})
                ],
                "responses": _answers(
                    c200="an assignment, or finished", c204="ask again", **_REFUSED
                ),
            }
        },
        "/v1/weights/{version}": {
            "get": {
                "parameters": [
                    _path("version"),
                    _query("codec", {"enum": list(bodies.WEIGHTS_CODECS)}),
                ],
                "responses": {
                    "200": {"description": "safetensors", "content": _TENSORS},
                    "206": {"description": "the rest of it", "content": _TENSORS},
                    **_answers(c304="unchanged", c409="stale", **_REFUSED),
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
                "responses": _answers(
                    c200="counted, or counted before",
                    c202="part of it is here, send the rest",
                    c400="malformed",
                    c408="too slow",
                    c409="stale or finished",
                    c411="no length",
                    c413="too large",
                    c416="resume elsewhere",
                    c422="rubbish",
                    c503="too many uploads",
                    **_REFUSED,
                ),
            },
        },
    },
}
