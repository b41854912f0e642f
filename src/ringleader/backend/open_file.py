"""OpenFile: a file that a process of this host has open, to be mapped by another one.

It is found by the descriptor of the process that has it (Linux). A process of another
user, or of another container, cannot be looked into, and its file is not mapped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A process, its descriptor, and which file that is."""

    process: int
    descriptor: int
    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> Self:
        """Describe a file of this process."""
        facts = os.fstat(descriptor)
        return cls(os.getpid(), descriptor, facts.st_dev, facts.st_ino)

    def map(self, num_bytes: int) -> Tensor:
        """Map the file, of exactly this length; OSError if it is another one."""
        path = f"/proc/{self.process}/fd/{self.descriptor}"
        self._check(os.stat(path), path, num_bytes)  # opening a device may do something
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._check(os.fstat(opened), path, num_bytes)
            # Python's own mapping would keep a descriptor for each file.
            own = f"/proc/self/fd/{opened}"
            return torch.from_file(own, shared=True, size=num_bytes, dtype=torch.uint8)
        finally:
            os.close(opened)

    def _check(self, facts: os.stat_result, path: str, num_bytes: int) -> None:
        if (facts.st_dev, facts.st_ino) != (self.device, self.inode):
            raise OSError(f"{path} is another file")
        if facts.st_size != num_bytes:
            raise OSError(f"{path} has {facts.st_size} bytes, not {num_bytes}")
