from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("version", "world", "rank", "size", "namespace")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    version: int
    world: int
    rank: int
    size: int
    namespace: bytes
    def __init__(self, version: _Optional[int] = ..., world: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ..., namespace: _Optional[bytes] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("welcome", "incoming")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    INCOMING_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    incoming: Incoming
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., incoming: _Optional[_Union[Incoming, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    def __init__(self, token: _Optional[bytes] = ...) -> None: ...

class Incoming(_message.Message):
    __slots__ = ("connection", "from_rank")
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    FROM_RANK_FIELD_NUMBER: _ClassVar[int]
    connection: int
    from_rank: int
    def __init__(self, connection: _Optional[int] = ..., from_rank: _Optional[int] = ...) -> None: ...

class Packet(_message.Message):
    __slots__ = ("open", "accept", "data", "end")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    open: Open
    accept: Accept
    data: bytes
    end: End
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., accept: _Optional[_Union[Accept, _Mapping]] = ..., data: _Optional[bytes] = ..., end: _Optional[_Union[End, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("token", "to_rank", "hello")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TO_RANK_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    to_rank: int
    hello: bytes
    def __init__(self, token: _Optional[bytes] = ..., to_rank: _Optional[int] = ..., hello: _Optional[bytes] = ...) -> None: ...

class Accept(_message.Message):
    __slots__ = ("token", "connection")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    connection: int
    def __init__(self, token: _Optional[bytes] = ..., connection: _Optional[int] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
