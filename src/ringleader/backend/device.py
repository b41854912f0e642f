"""The interface of an accelerator that staging uses, for CUDA and MPS."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from ringleader.errors import ConfigError

_log = logging.getLogger(__name__)

REGISTER_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device of this process."""


_NOTHING = nullcontext()


class Event(Protocol):
    """A recorded point in a device's stream."""

    def synchronize(self) -> None:
        """Block until the device has reached it."""
        ...


class Device(Protocol):
    """An accelerator with one stream of copies per direction.

    The names are those of torch.cuda. The "current stream" is that of the calling
    thread: the one of ``d2h_stream`` or ``h2d_stream`` inside these contexts.
    """

    def guard(self) -> AbstractContextManager[Any]:
        """Make it the current device of this thread."""
        ...

    def d2h_stream(self) -> AbstractContextManager[Any]:
        """Run copies in the stream from the device to the host."""
        ...

    def h2d_stream(self) -> AbstractContextManager[Any]:
        """Run copies in the stream from the host to the device."""
        ...

    def callers_stream(self) -> AbstractContextManager[Any]:
        """Run copies in the current stream, in which the caller computes."""
        ...

    def record_event(self) -> Event:
        """Record an event in the current stream."""
        ...

    def synchronize(self) -> None:
        """Block until the current stream has done all that was issued in it."""
        ...

    def wait_event(self, event: Event) -> None:
        """Let the current stream wait for ``event``."""
        ...

    def record_stream(self, tensor: Tensor) -> None:
        """Keep the memory of ``tensor`` until the current stream has used it."""
        ...

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Allocate host memory that the device copies at full speed."""
        ...

    def pin(self, memory: Tensor) -> Callable[[], None]:
        """Let the device copy ``memory`` at full speed; return a function that undoes
        it.
        """
        ...


class _Current:
    """Makes a stream the current one; torch's own context takes twice as long."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before = torch.cuda.current_stream(self._stream.device_index)
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_stream(self._before)


class CudaDevice:
    """A CUDA device with a stream per direction and pinned host memory.

    Events are those of ``torch.Event``, which are made and recorded in C++:
    ``torch.cuda.Event`` takes twice as long.
    """

    def __init__(self, device: torch.device) -> None:
        self._torch_device = device
        self._device = device.index  # torch looks an int up faster than a device
        self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def guard(self) -> AbstractContextManager[Any]:
        """Make it the current device of this thread."""
        if torch.cuda.current_device() == self._device:
            return _NOTHING
        return torch.cuda.device(self._device)

    def d2h_stream(self) -> AbstractContextManager[Any]:
        """Run copies in the stream from the device to the host."""
        return _Current(self._out)

    def h2d_stream(self) -> AbstractContextManager[Any]:
        """Run copies in the stream from the host to the device."""
        return _Current(self._in)

    def callers_stream(self) -> AbstractContextManager[Any]:
        """Do nothing: it is the current stream."""
        return _NOTHING

    def record_event(self) -> Event:
        """Record an event in the current stream."""
        event = torch.Event(self._torch_device)
        event.record()
        return event

    def synchronize(self) -> None:
        """Block until the current stream has done all that was issued in it."""
        torch.cuda.current_stream(self._device).synchronize()

    def wait_event(self, event: Event) -> None:
        """Let the current stream wait for ``event``."""
        assert isinstance(event, torch.Event)
        event.wait()

    def record_stream(self, tensor: Tensor) -> None:
        """Keep the memory of ``tensor`` until the current stream has used it."""
        tensor.record_stream(torch.cuda.current_stream(self._device))

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Allocate pinned memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def pin(self, memory: Tensor) -> Callable[[], None]:
        """Pin ``memory``. If the system refuses, copies are slower but correct."""
        if memory.is_pinned():  # already, for another device
            return lambda: None
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = runtime.cudaHostRegister(
            memory.data_ptr(), memory.nbytes, REGISTER_PORTABLE
        )
        if int(code) != 0:
            with suppress(RuntimeError):  # else torch's next call would raise it
                torch.empty(1, device=f"cuda:{self._device}").zero_()
            text = "cuda: shared memory cannot be pinned (%s); copies will be slower"
            _log.warning(text, runtime.cudaGetErrorString(code))
            return lambda: None
        return lambda: runtime.cudaHostUnregister(memory.data_ptr())


class MpsDevice:
    """Apple's GPU: one queue, which runs everything in the order it was issued."""

    def guard(self) -> AbstractContextManager[Any]:
        """Do nothing: there is only one device."""
        return _NOTHING

    d2h_stream = h2d_stream = callers_stream = guard

    def record_event(self) -> Event:
        """Record an event in the queue."""
        event = torch.mps.Event()
        event.record()
        return event

    def synchronize(self) -> None:
        """Block until the queue has done all that was issued in it."""
        torch.mps.synchronize()

    def wait_event(self, event: Event) -> None:
        """Do nothing: the queue keeps the order."""

    def record_stream(self, tensor: Tensor) -> None:
        """Do nothing: memory is freed in the order of the queue."""

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Allocate plain memory: host and device share it."""
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")

    def pin(self, memory: Tensor) -> Callable[[], None]:
        """Do nothing: host and device share memory."""
        return lambda: None


@contextmanager
def results_stream(device: Device) -> Iterator[None]:
    """Make a stream current that may wait for results: nobody computes in it."""
    with device.guard(), device.h2d_stream():
        yield


def device_of(device: torch.device) -> Device:
    """Return the accelerator of a torch device; ConfigError if it is not supported."""
    if device.type == "cuda":
        return CudaDevice(device)
    if device.type == "mps":
        return MpsDevice()
    raise ConfigError(f"tensors on {device} cannot be sent; move them to cpu first")


def available_devices() -> list[torch.device]:
    """Return the kinds of devices that this machine has, CPU first."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names.append("cuda")
    if torch.backends.mps.is_available():
        names.append("mps")
    return [torch.device(name) for name in names]
