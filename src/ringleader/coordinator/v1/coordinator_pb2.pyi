from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Namespace(_message.Message):
    __slots__ = ("key", "job")
    KEY_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    job: str
    def __init__(self, key: _Optional[bytes] = ..., job: _Optional[str] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("rank", "worker_id", "incarnation", "addresses")
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    worker_id: str
    incarnation: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rank: _Optional[int] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("namespace", "worker_id", "incarnation", "addresses")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    worker_id: str
    incarnation: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterWorkerResponse(_message.Message):
    __slots__ = ("rank", "heartbeat_timeout_s", "heartbeat_interval_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    heartbeat_timeout_s: float
    heartbeat_interval_s: float
    def __init__(self, rank: _Optional[int] = ..., heartbeat_timeout_s: _Optional[float] = ..., heartbeat_interval_s: _Optional[float] = ...) -> None: ...

class UnregisterWorkerRequest(_message.Message):
    __slots__ = ("namespace", "worker_id", "incarnation")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    worker_id: str
    incarnation: str
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class UnregisterWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("namespace", "worker_id", "incarnation")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    worker_id: str
    incarnation: str
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("status",)
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATUS_UNSPECIFIED: _ClassVar[HeartbeatResponse.Status]
        STATUS_OK: _ClassVar[HeartbeatResponse.Status]
        STATUS_REGISTER_AGAIN: _ClassVar[HeartbeatResponse.Status]
        STATUS_REPLACED: _ClassVar[HeartbeatResponse.Status]
    STATUS_UNSPECIFIED: HeartbeatResponse.Status
    STATUS_OK: HeartbeatResponse.Status
    STATUS_REGISTER_AGAIN: HeartbeatResponse.Status
    STATUS_REPLACED: HeartbeatResponse.Status
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: HeartbeatResponse.Status
    def __init__(self, status: _Optional[_Union[HeartbeatResponse.Status, str]] = ...) -> None: ...

class WatchPeersRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ...) -> None: ...

class PeersUpdate(_message.Message):
    __slots__ = ("version", "is_snapshot", "joined", "departed", "continues")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    DEPARTED_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    version: int
    is_snapshot: bool
    joined: _containers.RepeatedCompositeFieldContainer[Worker]
    departed: _containers.RepeatedCompositeFieldContainer[Departure]
    continues: bool
    def __init__(self, version: _Optional[int] = ..., is_snapshot: _Optional[bool] = ..., joined: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., departed: _Optional[_Iterable[_Union[Departure, _Mapping]]] = ..., continues: _Optional[bool] = ...) -> None: ...

class Departure(_message.Message):
    __slots__ = ("rank", "worker_id", "reason")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Departure.Reason]
        REASON_UNREGISTERED: _ClassVar[Departure.Reason]
        REASON_EVICTED: _ClassVar[Departure.Reason]
    REASON_UNSPECIFIED: Departure.Reason
    REASON_UNREGISTERED: Departure.Reason
    REASON_EVICTED: Departure.Reason
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rank: int
    worker_id: str
    reason: Departure.Reason
    def __init__(self, rank: _Optional[int] = ..., worker_id: _Optional[str] = ..., reason: _Optional[_Union[Departure.Reason, str]] = ...) -> None: ...

class StartCheckpointRequest(_message.Message):
    __slots__ = ("namespace", "worker_id", "step", "path")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    worker_id: str
    step: int
    path: str
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ..., worker_id: _Optional[str] = ..., step: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class EndCheckpointRequest(_message.Message):
    __slots__ = ("namespace", "worker_id", "step")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    worker_id: str
    step: int
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ..., worker_id: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class GetCheckpointsRequest(_message.Message):
    __slots__ = ("namespace", "step")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    step: int
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class GetCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints",)
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[CheckpointState]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[CheckpointState, _Mapping]]] = ...) -> None: ...

class CheckpointState(_message.Message):
    __slots__ = ("step", "path", "participants", "is_complete", "started_at_s", "completed_at_s")
    class Participant(_message.Message):
        __slots__ = ("rank", "worker_id", "is_done", "is_registered")
        RANK_FIELD_NUMBER: _ClassVar[int]
        WORKER_ID_FIELD_NUMBER: _ClassVar[int]
        IS_DONE_FIELD_NUMBER: _ClassVar[int]
        IS_REGISTERED_FIELD_NUMBER: _ClassVar[int]
        rank: int
        worker_id: str
        is_done: bool
        is_registered: bool
        def __init__(self, rank: _Optional[int] = ..., worker_id: _Optional[str] = ..., is_done: _Optional[bool] = ..., is_registered: _Optional[bool] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_S_FIELD_NUMBER: _ClassVar[int]
    step: int
    path: str
    participants: _containers.RepeatedCompositeFieldContainer[CheckpointState.Participant]
    is_complete: bool
    started_at_s: float
    completed_at_s: float
    def __init__(self, step: _Optional[int] = ..., path: _Optional[str] = ..., participants: _Optional[_Iterable[_Union[CheckpointState.Participant, _Mapping]]] = ..., is_complete: _Optional[bool] = ..., started_at_s: _Optional[float] = ..., completed_at_s: _Optional[float] = ...) -> None: ...
