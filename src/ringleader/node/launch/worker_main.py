"""Runs the user's program in a worker and records the exception that ends it.

Started by its path, as ``python worker_main.py train.py ARGS`` or with ``-m MODULE``:
the program sees the same ``sys.argv``, ``sys.path`` and ``__main__`` as if Python had
started it. torch's elastic agent reads the record (``TORCHELASTIC_ERROR_FILE``), which
otherwise exists only for programs decorated with torch's ``@record``.
"""

from __future__ import annotations

import os
import signal
import sys
from types import ModuleType, TracebackType
from typing import NoReturn

from ringleader import settings
from ringleader.settings.launch import is_stopping

MAX_CHARACTERS = 20_000
INTERRUPTED = "ended with KeyboardInterrupt"
"""How groups tell that another rank was stopped."""
_OURS = {__file__, "<frozen runpy>"}


def main(*, imports_neighbours: bool = not sys.flags.safe_path) -> None:
    """Run the program named by the arguments; exit as Python would.

    ``imports_neighbours``: the first folder of the path is ours, and is replaced by the
    program's. PYTHONSAFEPATH forbids both.
    """
    is_module = sys.argv[1] == "-m"
    if imports_neighbours:
        script = os.path.realpath(sys.argv[1])
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(script)
    try:
        if is_module:
            _run_module(sys.argv[2], sys.argv[2:])
        else:
            _run_script(sys.argv[1], sys.argv[1:])
    except KeyboardInterrupt as exc:
        if is_stopping():
            _end_quietly(exc)
        raise
    except SystemExit as exc:
        if exc.code not in (None, 0):
            record(exc, without_our_frames(exc))
        raise
    except BaseException as exc:  # noqa: BLE001 - Python handles all of them
        if is_stopping() or INTERRUPTED in str(exc):
            _end_quietly(exc)
        traceback = without_our_frames(exc)
        record(exc, traceback)
        sys.last_value = exc  # as Python sets it: open groups tell the others why
        sys.excepthook(type(exc), exc.with_traceback(traceback), traceback)
        sys.exit(1)


def _end_quietly(exc: BaseException) -> NoReturn:
    """End after a stop: with one line about where, and none from what is torn down.

    A collective that another rank has left raises instead of KeyboardInterrupt, and so
    does what torch was just compiling; DataLoaders complain about their processes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it may come after another rank's
    import threading
    from traceback import extract_tb

    from ringleader.node.launch.process_exit import leave

    frames = list(extract_tb(without_our_frames(exc)))
    own = [each for each in frames if _is_own(each.filename)]
    places = [own[-1:], frames[-1:] if frames[-1:] != own[-1:] else []]
    where = ", in ".join(f"{e.filename}:{e.lineno}" for each in places for e in each)
    sys.stderr.write(f"stopped in {where or 'the interpreter'}\n")
    sys.last_value = exc  # open groups tell the others why
    if hasattr(signal, "SIGCHLD"):  # a DataLoader raises in its handler
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()  # such as a checkpoint that is being written
    leave(128 + signal.SIGINT)


def _is_own(file: str) -> bool:
    """Return whether a file lies in the program's folder."""
    return os.path.abspath(file).startswith(os.path.join(sys.path[0], ""))


def _run_script(path: str, argv: list[str]) -> None:
    from importlib.machinery import SourceFileLoader

    sys.argv = argv
    main_module = ModuleType("__main__")
    values = {"__file__": path, "__loader__": SourceFileLoader("__main__", path)}
    vars(main_module).update(
        {**values, "__builtins__": __builtins__, "__cached__": None}
    )
    sys.modules["__main__"] = main_module
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), vars(main_module))


def _run_module(name: str, argv: list[str]) -> None:
    import runpy

    sys.argv = argv
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def without_our_frames(exc: BaseException) -> TracebackType | None:
    """Return the traceback from the first frame of the user's program on."""
    traceback = exc.__traceback__
    while traceback and traceback.tb_frame.f_code.co_filename in _OURS:
        traceback = traceback.tb_next
    return traceback


def record(exc: BaseException, traceback: TracebackType | None) -> None:
    """Write the exception in the format of torch's error handler."""
    import json
    import time
    from traceback import format_exception, format_exception_only

    path = settings.error_file()
    if not path or os.path.exists(path):  # the program has recorded it itself
        return
    stack = "".join(format_exception(type(exc), exc, traceback))
    extra = {
        "py_callstack": stack[-MAX_CHARACTERS:],
        "timestamp": str(int(time.time())),
    }
    said = format_exception_only(exc)
    error = said[-1 if isinstance(exc, SyntaxError) else 0].strip()[:MAX_CHARACTERS]
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": error, "extraInfo": extra}}, file)
    except OSError as failure:
        sys.stderr.write(f"ringleader: cannot record the error in {path}: {failure}\n")


if __name__ == "__main__":
    main()
