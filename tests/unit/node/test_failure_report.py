"""A failed worker becomes a short report without control characters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ringleader.node.launch import worker_main
from ringleader.node.launch.failure_report import describe, first_failure, is_hopeless
from ringleader.node.protocol.job_failure import MAX_LINE, MAX_LINES, JobFailure
from ringleader.node.protocol.node_state import MAX_FAILURES, MAX_STATE_BYTES


@dataclass
class Failure:
    """What torch knows about a failed worker."""

    exitcode: int = 1
    message: Any = ""
    timestamp: int = 100


def raised(error: str, stack: str = "", timestamp: int = 100) -> Failure:
    stack = stack or f'Traceback:\n  File "/x/train.py", line 3, in f\n{error}'
    extra = {"py_callstack": stack, "timestamp": str(timestamp)}
    return Failure(1, {"message": error, "extraInfo": extra}, timestamp)


def report(failure: Failure) -> JobFailure:
    return first_failure({0: failure}, "job", "round")


def test_the_report_names_the_exception_and_the_last_lines() -> None:
    stack = "".join(f'  File "/x/t.py", line {n}\n    f()\n' for n in range(99))
    made = report(raised("ValueError: no\x1b[2Jway \u202e", stack + "ValueError: no"))
    assert made.error == "ValueError: no [2Jway  "
    assert len(made.lines) == MAX_LINES
    assert made.lines[-1] == "ValueError: no"
    text = describe("attic", made)
    assert "rank 0 on attic failed: ValueError: no" in text
    assert 't.py", line 98' in text


def test_the_longest_reports_fit_into_a_node_state() -> None:
    line = "\U0001f525" * 400 + "\ud800"
    made = report(raised(f"ValueError: {line}", "\n".join([line] * 20)))
    data = msgspec.msgpack.encode(made)
    assert msgspec.msgpack.decode(data, type=JobFailure) == made
    assert all(len(each) <= MAX_LINE for each in made.lines)
    assert MAX_FAILURES * len(data) < MAX_STATE_BYTES / 2


@pytest.mark.parametrize(
    ("field", "value"), [("error", "a\nb"), ("lines", ["\x1b"]), ("lines", ["x"] * 99)]
)
def test_a_report_with_control_characters_is_refused(field: str, value: object) -> None:
    plain = {**msgspec.to_builtins(report(raised("E: x"))), field: value}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(plain, JobFailure)


@pytest.mark.parametrize(
    "error",
    [
        "ringleader.errors.PeerLost: rank 1: closed the connection",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "RuntimeError: [gloo/pair.cc:553] Connection closed by peer [10.0.0.2]:4711",
        "ringleader.errors.DeadlineExceeded: rank 1: all_reduce took more than 300 s",
    ],
)
def test_a_lost_connection_is_the_consequence_of_another_failure(error: str) -> None:
    cause = raised("ValueError: loss is nan", timestamp=101)
    assert report(raised(error)).is_consequence
    found = first_failure({0: raised(error), 7: cause}, "job", "round")
    assert (found.rank, found.is_consequence) == (7, False)


def test_a_killed_worker_is_told_by_its_signal() -> None:
    """Torch's text names a process, which is not the worker if that was forked."""
    message = "Signal 9 (SIGKILL) received by PID 4711"
    assert report(Failure(-9, message)).error == "killed by SIGKILL"
    assert report(Failure(-70, message)).error == "killed by signal 70"


def test_a_worker_that_had_raised_when_it_was_ended_failed_by_itself() -> None:
    """Was: 143, if the launcher noticed the end of another rank first."""
    late = raised("ValueError: boom")
    late.exitcode = -signal.SIGTERM
    assert report(late).exit_status == 1
    assert report(Failure(-signal.SIGTERM)).exit_status == -signal.SIGTERM


def test_what_cannot_be_mended_by_restarting_is_known() -> None:
    for error in ("ModuleNotFoundError: no pandas", "ImportError: x", "SyntaxError: ("):
        assert is_hopeless(report(raised(error)))
    for failure in (raised("ValueError: x"), Failure(-9, "Signal 9"), Failure(3)):
        assert not is_hopeless(report(failure))


def test_the_same_exception_at_the_same_line_has_the_same_signature() -> None:
    first, other_text = raised("ValueError: step 1"), raised("ValueError: step 2")
    elsewhere = raised("ValueError: step 1", 'x\n  File "/x/train.py", line 4, in f\n')
    assert report(first).signature == report(other_text).signature != ""
    assert report(first).signature != report(elsewhere).signature
    assert report(first).signature != report(raised("KeyError: 1")).signature
    assert report(Failure(-11, "Signal 11 (SIGSEGV)")).signature == ""


PROGRAM = """
import sys
import __main__
assert __main__.__file__ == __file__ and __name__ == "__main__"
import beside
print(sys.argv[1:], beside.VALUE)
class Here: pass
import pickle
pickle.loads(pickle.dumps(Here()))
def fail(): 1 / 0
if sys.argv[1] == "exit": sys.exit(7)
if sys.argv[1] == "fail": fail()
"""


def test_a_worker_runs_the_program_as_python_does_and_records_its_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("VALUE = 5")
    record = tmp_path / "error.json"

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, worker_main.__file__, *argv],
            env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(record)},
            cwd=tmp_path,
            text=True,
            capture_output=True,
            timeout=200,
            check=False,
        )

    for argv in (["train.py"], ["-m", "train"]):
        record.unlink(missing_ok=True)
        done = run(*argv, "well")
        assert (done.returncode, done.stdout) == (0, "['well'] 5\n"), done.stderr
        assert run(*argv, "exit").returncode == 7
        assert json.loads(record.read_text())["message"]["message"] == "SystemExit: 7"
        record.unlink()
        done = run(*argv, "fail")
        assert done.returncode == 1
        assert "worker_main" not in done.stderr
        assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
        made = report(Failure(1, json.loads(record.read_text())["message"]))
        assert made.error == "ZeroDivisionError: division by zero"
        assert any('train.py", line 10, in fail' in line for line in made.lines)

    (tmp_path / "broken.py").write_text("def (:")
    record.unlink()
    assert run("broken.py").returncode == 1
    assert is_hopeless(report(Failure(1, json.loads(record.read_text())["message"])))
