"""What staging needs of an accelerator, and the accelerators there are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from ringleader.errors import ConfigError

_log = logging.getLogger(__name__)

FOR_ALL = 1
"""cudaHostRegisterPortable: pinned for every device of this process."""


class Event(Protocol):
    """A moment on a device."""

    def synchronize(self) -> None:
        """Return when the device has come there."""
        ...


class Device(Protocol):
    """What staging needs of an accelerator: two queues of copies, and their order."""

    def here(self) -> AbstractContextManager[Any]:
        """Makes it the current device of this thread."""
        ...

    def outbound(self) -> AbstractContextManager[Any]:
        """Copies made within leave the device."""
        ...

    def inbound(self) -> AbstractContextManager[Any]:
        """Copies made within enter the device."""
        ...

    def mark(self) -> Event:
        """The present moment of the current queue."""
        ...

    def after(self, event: Event) -> None:
        """The current queue goes on when ``event`` has happened."""
        ...

    def use(self, tensor: Tensor) -> None:
        """The current queue uses ``tensor``: its memory must live that long."""
        ...

    def host_memory(self, num_bytes: int) -> Tensor:
        """Bytes of the host that the device can copy to and from at full speed."""
        ...

    def admit(self, memory: Tensor) -> Callable[[], None]:
        """Let it do so with ``memory``, too; what undoes that."""
        ...


class CudaDevice:
    """CUDA: a stream for each direction, pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device.index  # a plain number is looked up fastest
        self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def here(self) -> AbstractContextManager[Any]:
        """Makes it the current device of this thread."""
        return torch.cuda.device(self._device)

    def outbound(self) -> AbstractContextManager[Any]:
        """Copies made within leave the device."""
        return torch.cuda.stream(self._out)

    def inbound(self) -> AbstractContextManager[Any]:
        """Copies made within enter the device."""
        return torch.cuda.stream(self._in)

    def mark(self) -> Event:
        """The present moment of the current stream."""
        event: Event = torch.cuda.current_stream(self._device).record_event()
        return event

    def after(self, event: Event) -> None:
        """The current stream goes on when ``event`` has happened."""
        torch.cuda.current_stream(self._device).wait_event(event)  # type: ignore[arg-type]

    def use(self, tensor: Tensor) -> None:
        """The current stream uses ``tensor``."""
        tensor.record_stream(torch.cuda.current_stream(self._device))

    def host_memory(self, num_bytes: int) -> Tensor:
        """Pinned memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def admit(self, memory: Tensor) -> Callable[[], None]:
        """Pin it. Where the system does not let us, copies are slower, not wrong."""
        if memory.is_pinned():  # for another device
            return lambda: None
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, FOR_ALL)
        if int(code) != 0:
            with suppress(RuntimeError):  # of torch's next operation, whatever it is
                torch.empty(1, device=f"cuda:{self._device}").zero_()
            text = "cuda: shared memory cannot be pinned (%s); copies are slower"
            _log.warning(text, runtime.cudaGetErrorString(code))
            return lambda: None
        return lambda: runtime.cudaHostUnregister(memory.data_ptr())


class MpsDevice:
    """Apple's GPU: one queue, in which everything happens in the order it was asked."""

    def here(self) -> AbstractContextManager[Any]:
        """There is only one."""
        return nullcontext()

    outbound = inbound = here

    def mark(self) -> Event:
        """The present moment of the queue."""
        event = torch.mps.Event()
        event.record()
        return event

    def after(self, event: Event) -> None:
        """It always does."""

    def use(self, tensor: Tensor) -> None:
        """Memory is freed in the order of the same queue."""

    def host_memory(self, num_bytes: int) -> Tensor:
        """Memory is one and the same."""
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")

    def admit(self, memory: Tensor) -> Callable[[], None]:
        """It is."""
        return lambda: None


def device_of(device: torch.device) -> Device:
    """How to stage tensors of ``device``."""
    if device.type == "cuda":
        return CudaDevice(device)
    if device.type == "mps":
        return MpsDevice()
    raise ConfigError(f"tensors on {device} cannot be sent; move them to cpu")


def devices_here() -> list[torch.device]:
    """What tensors may live on here."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names.append("cuda")
    if torch.backends.mps.is_available():
        names.append("mps")
    return [torch.device(name) for name in names]
