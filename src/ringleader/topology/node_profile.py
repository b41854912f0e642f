"""NodeProfile describes a machine: chip, cores, memory, accelerators, versions.

The agent measures itself once at start and tells the others. It must answer at once, so
nothing here imports torch, and the one slow step (``nvidia-smi`` can take seconds to
wake a driver) is a function of its own, for a thread to call.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta

from ringleader.deadline import Deadline
from ringleader.errors import ProtocolError

MAX_TEXT = 96
"""Characters of a name. The longest chip names have about 60; a profile must stay
small beside the other things a node tells of itself."""

MAX_ACCELERATORS = 16
"""The largest machines on the market have 16."""

MAX_PROFILE_BYTES = 16 << 10
"""More than the longest profile that these limits allow."""

SYSCTL_S = 2.0
"""``sysctl`` takes 5 ms; where it takes seconds the machine has other problems."""

MIB = 1 << 20

# A name is shown in terminals of other machines: no control characters, no escapes.
Text = Annotated[
    str, Meta(max_length=MAX_TEXT, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028-\u202e]*\Z")
]
Count = Annotated[int, Meta(ge=0, le=1 << 16)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]
Device = Literal["cpu", "cuda", "mps"]

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_CPUINFO = Path("/proc/cpuinfo")
_BOARD = Path("/proc/device-tree/model")
_CPU_KEY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


class Accelerator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device that computes faster than the cores."""

    name: Text
    device: Literal["cuda", "mps"]
    """Torch's name of the device type."""
    memory_bytes: Bytes = 0
    """Its own memory, or the host's if shared; 0 if unknown."""


class NodeProfile(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True
):
    """One machine in numbers and names; small, bounded, safe to show."""

    host: Text
    system: Text
    """Name of the operating system: Linux, Darwin, Windows."""
    system_version: Text
    architecture: Text
    chip: Text
    physical_cores: Count
    logical_cores: Count
    total_ram_bytes: Bytes
    available_ram_bytes: Bytes
    accelerators: Annotated[
        tuple[Accelerator, ...], Meta(max_length=MAX_ACCELERATORS)
    ] = ()
    unified_memory: bool = False
    """True if the accelerator uses the host's memory, as Apple's chips do."""
    torch_version: Text = ""
    """Empty if torch is not installed."""
    python_version: Text = ""
    ringleader_version: Text = ""

    @property
    def device(self) -> Device:
        """The device a worker trains on here by default."""
        return self.accelerators[0].device if self.accelerators else "cpu"

    def with_accelerators(self, found: Iterable[Accelerator]) -> Self:
        """Return the same machine with accelerators found by a slower check."""
        kept = tuple(found)[:MAX_ACCELERATORS]
        return msgspec.structs.replace(self, accelerators=kept)


_DECODER = msgspec.msgpack.Decoder(NodeProfile)


def encode(profile: NodeProfile) -> bytes:
    """Return the profile as bytes."""
    return msgspec.msgpack.encode(profile)


def decode(data: bytes, peer: str) -> NodeProfile:
    """Return the profile that ``peer`` sent; ProtocolError if it breaks a limit."""
    if len(data) > MAX_PROFILE_BYTES:
        text = f"profile of {len(data)} bytes, the limit is {MAX_PROFILE_BYTES}"
        raise ProtocolError(peer, text)
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ProtocolError(peer, f"profile: {exc}") from exc


def measure() -> NodeProfile:
    """Return this machine's profile in about 30 ms; GPUs by name only.

    ``find_accelerators`` finds their memory.
    """
    import psutil  # slow to import, and only agents measure

    memory = psutil.virtual_memory()
    logical = psutil.cpu_count() or 1
    is_apple = _is_apple_chip()
    chip = _chip()
    found = [Accelerator(chip, "mps", memory.total)] if is_apple else _nvidia_names()
    return NodeProfile(
        host=clean(socket.gethostname()),
        system=clean(platform.system()),
        system_version=clean(_system_version()),
        architecture=clean(platform.machine()),
        chip=chip,
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        total_ram_bytes=memory.total,
        available_ram_bytes=memory.available,
        accelerators=tuple(found)[:MAX_ACCELERATORS],
        unified_memory=is_apple,
        torch_version=_version("torch"),
        python_version=platform.python_version(),
        ringleader_version=clean(sys.modules["ringleader"].__version__),
    )


def find_accelerators(deadline: Deadline) -> tuple[Accelerator, ...]:
    """Return the GPUs that ``nvidia-smi`` lists, or just their names if it fails.

    It may take seconds: call it from a thread and pass the result to
    ``with_accelerators``. Apple's chips are known from the start and not included.
    """
    tool = shutil.which("nvidia-smi") or "nvidia-smi"
    query = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    found = parse_nvidia(tool_output([tool, *query], deadline.left_s()))
    return found or tuple(_nvidia_names())


def parse_nvidia(text: str) -> tuple[Accelerator, ...]:
    """Parse lines of name and MiB; a GPU that shares the host's memory has no MiB."""
    found = []
    for line in text.splitlines()[:MAX_ACCELERATORS]:
        name, comma, memory = line.rpartition(",")
        if comma:
            mib = int(memory) if memory.strip().isdecimal() else 0
            found.append(Accelerator(clean(name), "cuda", mib * MIB))
    return tuple(found)


def clean(text: str) -> str:
    """Return a name that a profile may carry: one line, printable, not too long."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:MAX_TEXT]


def parse_cpuinfo(text: str) -> str:
    """Return the chip's name in Linux's /proc/cpuinfo; empty if it has none."""
    for wanted in ("model name", "cpu model", "Model", "Hardware"):
        for line in text.splitlines():
            key, colon, value = line.partition(":")
            if colon and key.strip() == wanted and value.strip():
                return clean(value)
    return ""


def _chip() -> str:
    if platform.system() == "Darwin":
        named = _sysctl("machdep.cpu.brand_string")
    elif platform.system() == "Windows":
        named = _windows_chip()
    else:
        named = parse_cpuinfo(_read(_CPUINFO)) or _read(_BOARD)
    return clean(named) or clean(platform.machine())


def _windows_chip() -> str:
    if sys.platform == "win32":  # for mypy: winreg exists only there
        import winreg

        with (
            contextlib.suppress(OSError),
            winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _CPU_KEY) as key,
        ):
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])
    return ""


def _is_apple_chip() -> bool:
    return platform.system() == "Darwin" and platform.machine() == "arm64"


def _system_version() -> str:
    if platform.system() == "Darwin":
        return platform.mac_ver()[0]
    if platform.system() == "Windows":
        return platform.version()
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    return platform.release()


def _nvidia_names() -> list[Accelerator]:
    """Return the GPUs that the driver lists under /proc: names, but no memory."""
    texts = [_read(path) for path in sorted(_NVIDIA.glob("*/information"))]
    lines = [line.partition(":") for text in texts for line in text.splitlines()]
    return [Accelerator(clean(v), "cuda") for k, _, v in lines if k.strip() == "Model"]


def _version(package: str) -> str:
    """Read a version from package metadata: importing torch would take seconds."""
    from importlib import metadata  # slow to import, as above

    with contextlib.suppress(metadata.PackageNotFoundError):
        return clean(metadata.version(package))
    return ""


def _sysctl(name: str) -> str:
    return tool_output(["/usr/sbin/sysctl", "-n", name], SYSCTL_S)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").replace("\0", " ")
    return ""


def tool_output(argv: Sequence[str], within_s: float) -> str:
    """Return what a tool prints; empty if it fails, is missing or takes too long."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=max(0.01, within_s),
            stdin=subprocess.DEVNULL,
        ).stdout
    return ""
