"""Every test leaves the process as it found it: no thread, descriptor, child or file.

The check costs a fraction of a millisecond when the test was clean. When it was not, it
collects garbage and waits a moment, because threads and processes take time to end.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from ringleader.transport.free_ports import free_ports

if TYPE_CHECKING:
    from ringleader.testing.processes import ForkServer
    from tests.kit.warm_python import WarmPython

PATIENCE_S = 60.0
"""Time for threads and processes to end: an idle engine thread lingers for a second,
and a busy machine holds any of them up for several."""

# What is collected is no garbage; to look for some takes a third of the time.
gc.disable()

settings.register_profile(
    "busy machine",
    settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy machine")

# Of several threads of torch, each waits for the others after every operation: with as
# many processes as here, that costs ten times as much as the operation itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_ROOT = str(Path(__file__).parents[1])
_PATHS = os.environ.get("PYTHONPATH", "").split(os.pathsep)
# Processes that tests start import tests.kit, whatever their working directory is.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, dict.fromkeys([_ROOT, *_PATHS]))
)

free_ports(0)  # holds a socket from now on, which is no leak of the first test's

_SHM = Path("/dev/shm")
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
"""Several of us run at once: /dev/shm is everybody's, and checked once at the end."""
_END_S = 60.0
# Libraries open these on first use and keep them; they are not the test's.
_LAZY = (
    "/dev/null",
    "/dev/urandom",
    "/dev/random",
    "/sys/",
    "/var/lib/libuuid/",  # Python's uuid.getnode, where uuid-runtime is installed
    "/tmp/perf-",  # of code that oneDNN generates, from the first time on
    sys.prefix,
    sys.base_prefix,
    str(Path(pytest.__file__).parents[1]),
)
# multiprocessing starts it on first use and keeps it until the interpreter ends.
_HELPER = "multiprocessing.resource_tracker"


@dataclass(frozen=True, slots=True)
class State:
    """Resources that a test could leave behind."""

    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[str, str]]
    children: frozenset[int]
    shared: frozenset[str]

    def leaks_since(self, before: State) -> list[str]:
        """Describe everything that is here now and was not there ``before``."""
        leaks = [f"thread {t.name!r} still runs" for t in self.threads - before.threads]
        leaks += [
            f"descriptor {number} is still open ({target})"
            for number, target in sorted(self.descriptors - before.descriptors)
            if not target.startswith(_LAZY)
        ]
        leaks += [
            f"child process {pid} is still there ({_command(pid)})"
            for pid in sorted(self.children - before.children)
            if _HELPER not in _command(pid)
        ]
        leaks += [
            f"/dev/shm/{name} was left behind"
            for name in sorted(self.shared - before.shared)
            if not _is_in_use_elsewhere(name)
        ]
        return leaks


def look() -> State:
    """The state of this process now."""
    return State(
        threads=frozenset(t for t in threading.enumerate() if t.is_alive()),
        descriptors=frozenset(_descriptors()),
        children=frozenset(_children()),
        shared=frozenset() if _IS_WORKER else frozenset(_names(_SHM)),
    )


def _descriptors() -> Iterator[tuple[str, str]]:
    for number in _names(Path("/proc/self/fd")):
        with suppress(OSError):  # the descriptor of the listing itself is gone
            yield number, os.readlink(f"/proc/self/fd/{number}")


def _children() -> Iterator[int]:
    for task in _names(Path("/proc/self/task")):
        with suppress(OSError), open(f"/proc/self/task/{task}/children") as file:
            yield from map(int, file.read().split())


def _names(folder: Path) -> list[str]:
    """List ``folder``; empty where the system has none."""
    with suppress(OSError):
        return os.listdir(folder)
    return []


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode(errors="replace").strip()
    return ""


def _is_in_use_elsewhere(name: str) -> bool:
    """Return whether a foreign process maps it: then it is not our leak."""
    path = f"/dev/shm/{name}".encode()
    ours = {os.getpid(), *_children()}
    for pid in (int(n) for n in _names(Path("/proc")) if n.isdecimal()):
        with suppress(OSError):
            if pid not in ours and path in Path(f"/proc/{pid}/maps").read_bytes():
                return True
    return False


_SHARED_BEFORE = pytest.StashKey[frozenset[str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember what lies in shared memory before the first test."""
    session.stash[_SHARED_BEFORE] = frozenset(_names(_SHM))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """No test process may leave shared memory behind for good."""
    if _IS_WORKER or session.exitstatus != pytest.ExitCode.OK:
        return
    before = session.stash[_SHARED_BEFORE]
    until_s = time.monotonic() + _END_S
    while left := [
        name for name in set(_names(_SHM)) - before if not _is_in_use_elsewhere(name)
    ]:
        if time.monotonic() > until_s:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            sys.stderr.write(f"left in /dev/shm: {', '.join(sorted(left))}\n")
            return
        time.sleep(0.1)


def pytest_collection_finish() -> None:
    """Freeze what is loaded: scanning it takes 0.2 s of each garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember a failure: its traceback keeps alive what the test had opened."""
    report = yield
    item.stash[HAS_FAILED] = item.stash.get(HAS_FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True)
def leave_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves threads, descriptors, children or shared memory."""
    before = look()
    yield
    if request.node.stash.get(HAS_FAILED, False):
        return
    leaks = look().leaks_since(before)
    until_s = time.monotonic() + PATIENCE_S
    while leaks and time.monotonic() < until_s:
        gc.collect()  # again: a thread that ends may leave something to collect
        leaks = look().leaks_since(before)
        time.sleep(0.05 if leaks else 0)
    if leaks:
        pytest.fail(
            "the test left something behind: " + "; ".join(leaks), pytrace=False
        )


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Forks ranks; one for all tests, because it has to import torch."""
    from ringleader.testing.processes import ForkServer

    with ForkServer() as warm:
        yield warm


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """Forks programs that a user would start; one for all workers imports torch."""
    from tests.kit.warm_python import WarmPython

    folder = tmp_path_factory.getbasetemp()
    with WarmPython((folder.parent if _IS_WORKER else folder) / "python") as warm:
        yield warm


# -- several workers at once ----------------------------------------------------------

_SLOW = ("integration", "conformance", "contract", "torch")


def pytest_configure(config: pytest.Config) -> None:
    """Ports are looked for in a share of one's own: between the look and the use of
    one, another worker could take it.

    Each worker begins to collect at another folder: to rewrite the asserts of new files
    takes as long as all else, and what one worker has rewritten the others only read.
    """
    given = getattr(config, "workerinput", None)
    if given is not None:
        from ringleader.transport import free_ports

        number, count = int(given["workerid"].removeprefix("gw")), given["workercount"]
        free_ports._PORTS = free_ports._PORTS[number::count]
        places = [place for given in config.args for place in leaves(given)]
        first = len(places) * number // count
        config.args = places[first:] + places[:first]


def leaves(place: str) -> list[str]:
    """The folders without folders in a place, and files beside folders; else itself."""
    inner = sorted(p for p in Path(place).glob("*/") if any(p.rglob("test_*.py")))
    if not inner:
        return [place]
    beside = map(str, sorted(Path(place).glob("test_*.py")))
    return [*beside, *(leaf for folder in inner for leaf in leaves(str(folder)))]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Deal the folders with slow tests to the workers of xdist, who begin with them.

    A worker takes an equal share of all tests, in order, and steals from the end of
    another's when it is through. So folders stay whole, and what they prepare is
    prepared once; and at the end, when one worker waits for the last, tests are short.
    """
    num_workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if num_workers > 1:  # and each found them in another order
        items.sort(key=lambda item: str(item.path))
    yield
    if num_workers > 1:
        items[:] = deal(items, num_workers)


def deal(items: list[pytest.Item], num_workers: int) -> list[pytest.Item]:
    """The same tests, the slow ones at the beginning of each worker's share.

    A folder stays with one worker: its tests use the same warm processes.
    """
    slow: dict[Path, list[pytest.Item]] = {}
    fast: list[pytest.Item] = []
    for item in items:
        mine = slow.setdefault(item.path.parent, []) if _is_slow(item) else fast
        mine.append(item)
    hands: list[list[pytest.Item]] = [[] for _ in range(num_workers)]
    for tests in sorted(slow.values(), key=_num_files, reverse=True):
        min(hands, key=_num_files).extend(tests)
    dealt: list[pytest.Item] = []
    for number, hand in enumerate(hands):
        left = len(items) - len(dealt)
        room = left // (num_workers - number) - len(hand)
        dealt += hand + fast[: max(0, room)]
        del fast[: max(0, room)]
    return dealt + fast


def _num_files(items: list[pytest.Item]) -> int:
    """A better guess of the time that tests take than their number is."""
    return len({item.path for item in items})


def _is_slow(item: pytest.Item) -> bool:
    return item.path.relative_to(Path(__file__).parent).parts[0] in _SLOW


@pytest.fixture
def hearing() -> Iterator[None]:
    """SIGINT interrupts: background jobs of a shell are born deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
