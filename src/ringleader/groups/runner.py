"""Runs the operations of one group in order, one thread at a time, until its end.

The thread that holds ``lock`` owns the engine of the group. A synchronous call on an
idle group takes the lock and runs at once, in the caller: a thread switch costs more
than a small collective. Asynchronous calls are queued for a background thread, which
starts with the first of them; a caller that waits runs the queue itself if the
background thread does not.

The first error breaks the group for good. All peers are told, every queued operation
fails with it, and every later call raises it again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import get_ident

from ringleader.deadline import Deadline
from ringleader.engine import gil_interval
from ringleader.engine.arrays_by_address import Addresses
from ringleader.engine.engine import Finish, HeaderMismatch, Prepared, Start
from ringleader.engine.waiter import NAP_S, Options, Waiter
from ringleader.errors import (
    ConfigError,
    GroupAborted,
    InternalError,
    RingleaderError,
)
from ringleader.groups import lost_peer, mismatch
from ringleader.groups.callback_turns import CallbackTurns
from ringleader.groups.caller_observer import installed
from ringleader.groups.control_channel import ControlChannel
from ringleader.groups.job import Job
from ringleader.groups.messages import Outgoing, PendingRecv
from ringleader.groups.postponed_calls import PostponedCalls
from ringleader.groups.postponement import Postponement
from ringleader.groups.work import DONE, Turn, Work, same_again
from ringleader.transport.crowded_cores import relax
from ringleader.transport.link import wait_ready

_log = logging.getLogger(__name__)

LINGER_S = 1.0
"""Time that the background thread stays idle before it ends."""


class Runner:
    """The queue of one group's operations, and the error that ended the group."""

    def __init__(self, control: ControlChannel, name: str, timeout_s: float) -> None:
        self.control = control
        self.waiter = Waiter(control, timeout_s)
        self.lock = threading.Lock()
        self.failure: RingleaderError | None = None
        self.inherited: RingleaderError | None = None
        """``failure``, if the group belongs to the parent of this process."""
        self._name = f"ringleader-engine-{name}"
        self._queue: deque[Job] = deque()
        self.postponement = Postponement()
        self.postponed: PostponedCalls | None = None
        """Set if the end of a backward pass runs what was queued during it."""
        self._turns = CallbackTurns(self._queue, control.wake)
        self._wanted = 0
        self._thread: threading.Thread | None = None
        self._thread_lock = threading.Lock()
        self._news: SimpleQueue[None] = SimpleQueue()  # work for the thread
        self._closing = False
        self._owner = 0
        """The thread that runs an operation; its calls are part of that operation."""
        self._deadline = Deadline.after(0)
        self._nests = False
        self._hang_up: Callable[[], None] | None = None

    # -- operations ----------------------------------------------------------------

    def call(
        self,
        body: Callable[[Deadline], None],
        timeout_s: float,
        *,
        async_op: bool,
        nests: bool = False,
        is_postponed: bool | None = None,
    ) -> Work:
        """Run ``body`` after earlier operations, or as part of this thread's one.

        ``is_postponed``: whether the background thread leaves an asynchronous one alone
        for a while; None lets ``postponed`` decide.
        """
        if self._owner == get_ident():
            return self._nested(body, nests=nests)
        turn = self._turns.here()
        postponed = self.postponed  # another thread may close the group
        number = 0 if postponed is None else postponed.issue()
        if not async_op and not self._queue and self.lock.acquire(blocking=False):
            try:
                if not self._queue:  # another thread may have begun one meanwhile
                    self._run(body, Deadline.after(timeout_s), nests=nests)
                    return DONE
            finally:
                self.lock.release()
        self.check()
        job = Job(body, Deadline.after(timeout_s), Work(self), nests, number)
        if async_op and turn is None:
            job.is_postponed = self._postpones(is_postponed)
        add = self._queue.append if turn is None else turn.add
        add(job)
        if async_op:
            if installed.observer is not None:
                installed.observer.queued()
            self._ensure_thread()
        else:
            job.work.wait()
        return job.work

    def _postpones(self, asked: bool | None) -> bool:
        """Return whether an operation that is called now is postponed."""
        if asked is None and (postponed := self.postponed) is not None:
            return postponed.postpone(self._catch_up)
        return bool(asked)

    def has_time_here(self) -> bool:
        """Whether this thread runs an operation whose deadline is not over."""
        return self._owner == get_ident() and not self._deadline.is_over()

    def _nested(self, body: Callable[[Deadline], None], *, nests: bool) -> Work:
        """Run ``body`` as part of the operation that this thread runs."""
        if not self._nests:
            text = "an operation of this thread is running; is this a signal handler?"
            raise ConfigError(text)
        self._nests = nests
        try:
            body(self._deadline)
        except BaseException as exc:  # even if the caller catches it: other ranks wait
            raise self.broken(exc) from exc
        finally:
            self._nests = True
        return DONE

    def run_prepared(
        self, prepared: Prepared, addresses: Addresses, options: Options | None = None
    ) -> bool:
        """Run a prepared operation now; return False if others come first.

        It shortens the switch interval itself. ``options`` may limit its time.
        """
        # A keyword argument of acquire doubles its cost.
        if self._queue or not self.lock.acquire(False):
            return False
        try:
            if self._queue:  # another thread has begun one meanwhile
                return False
            self._owner = get_ident()
            if (postponed := self.postponed) is not None:
                postponed.issue()
            if self.failure is not None or self.control.aborted is not None:
                self.check()
            self.waiter.options = options
            prepared(addresses)
        except BaseException as exc:
            raise self.broken(exc) from exc
        finally:
            self._owner = 0
            self.waiter.options = None
            if self._hang_up is not None:
                self._leave()
            self.lock.release()
        return True

    def start_prepared(
        self,
        start: Start,
        addresses: Addresses,
        end: Callable[[Finish, Deadline], None],
    ) -> Work | None:
        """Begin a prepared operation now and queue ``end`` of the rest, if any.

        Returns None if others come first. It never waits for long, so groups and
        messages may be used in any order, as if the operation had been queued.
        """
        self.check()
        is_watched = installed.observer is not None
        if self._queue or is_watched or not self.lock.acquire(False):
            return None
        work = Work(self)
        try:
            if self._queue:  # another thread has begun one meanwhile
                return None
            self._owner = get_ident()
            postponed = self.postponed
            number = 0 if postponed is None else postponed.issue()
            finish = start(addresses)
            if finish is None:
                return DONE
            limit = Deadline.after(self.waiter.default_s)
            job = Job(partial(end, finish), limit, work, False, number)
            self._queue.appendleft(job)  # others may have queued theirs meanwhile
        except Exception as exc:  # noqa: BLE001 - the work raises it
            work.finish(same_again(self.broken(exc)))
            return work
        except BaseException as exc:
            raise self.broken(exc) from exc
        finally:
            self._owner = 0
            if self._hang_up is not None:
                self._leave()
            self.lock.release()
        if postponed is not None:
            job.is_postponed = postponed.postpone(self._catch_up)
        self._ensure_thread()
        return work

    def deliver(self, item: Outgoing | PendingRecv, *, async_op: bool) -> Work:
        """Send or receive one message, concurrently with all other operations."""
        if self._owner == get_ident():
            raise ConfigError("a message cannot be part of an operation")
        self.check()
        self.control.post(item)
        self.control.wake()
        if async_op:
            self._ensure_thread()
        else:
            item.work.wait()
        return item.work

    def message_work(self) -> Work:
        """A handle for a message; a thread that waits for it moves control frames."""
        return Work(self)

    def is_in_background(self) -> bool:
        """Whether this is the background thread, beside which the program computes."""
        thread = self._thread
        return thread is not None and thread.ident == get_ident()

    def check(self) -> None:
        """Raise the error that ended the group, if it has ended."""
        if error := self.failure or self.control.aborted:
            raise same_again(error)

    def _run(
        self, body: Callable[[Deadline], None], deadline: Deadline, *, nests: bool
    ) -> None:
        """Run one operation, with the lock held; its failure ends the group."""
        try:
            self._owner, self._deadline = get_ident(), deadline
            self._nests = nests
            gil_interval.begin()
            self.check()  # the first thread to see an abort tells the peers
            if nests and installed.observer is not None:
                with installed.observer.together():
                    body(deadline)
            else:
                body(deadline)
        except BaseException as exc:
            raise self.broken(exc) from exc
        finally:
            gil_interval.end()
            self._leave()

    def _leave(self) -> None:
        """End an operation, and the group if it was closed during the operation."""
        self._owner, self._nests = 0, False
        if self._hang_up is not None:
            hang_up, self._hang_up = self._hang_up, None
            self._say_goodbye()
            hang_up()

    def broken(self, exc: BaseException) -> BaseException:
        """End the group because of ``exc``; return what to raise instead of it."""
        if isinstance(exc, HeaderMismatch):
            exc = mismatch.explain(exc, self.control)
        if self.failure is None:
            # Errors are kept without tracebacks: their frames keep the engine alive.
            if isinstance(exc, RingleaderError):
                self.failure = same_again(lost_peer.explain(exc, self.control))
            elif not isinstance(exc, Exception):  # Ctrl-C, sys.exit
                text = f"interrupted by {type(exc).__name__} during an operation"
                self.failure = GroupAborted(text)
            else:
                self.failure = InternalError(f"{type(exc).__name__}: {exc}")
            if self.control.aborted is not None:
                self.control.aborted = same_again(self.control.aborted)
            with contextlib.suppress(OSError, RingleaderError):
                self.control.say_broken(self.failure)
        self._fail_all(self.failure)  # again: a message may have been posted since
        if isinstance(exc, RingleaderError):
            return same_again(self.failure)
        return exc

    def _fail_all(self, error: BaseException) -> None:
        while self._queue:
            self._queue.popleft().work.finish(error)
        self.control.fail(error)

    # -- the queue -----------------------------------------------------------------

    def _catch_up(self) -> None:
        """Run postponed jobs at the end of a backward pass."""
        if (postponed := self.postponed) is None:  # the group has ended
            return
        postponed.run_issued(self._queue, self.help_out)
        if self._queue:
            self._ensure_thread()

    def run_soon(self) -> None:
        """Let the background thread run what is queued, postponed or not."""
        self.postponement.end()
        if self._queue:
            self._ensure_thread()

    def extend(self, work: Work) -> bool:
        """Count one more operation as part of ``work``, if that is queued as the last.

        Its time limit begins anew. Returns False if ``work`` is not the last: others
        would come before what is added.
        """
        with contextlib.suppress(IndexError):  # it is empty
            job = self._queue[-1]
            if job.work is work:
                if (postponed := self.postponed) is not None:
                    job.number = postponed.issue()
                job.deadline = Deadline.after(job.deadline.after_s)
                return True
        return False

    def begin_turn(self) -> Turn | None:  # see Queue
        return self._turns.begin()

    def help_out(self, work: Work) -> None:
        """Run queued jobs and move frames, in a thread that waits for ``work``."""
        if (turn := self._turns.here()) is not None and not turn.is_over:
            return  # another thread serves it
        self._wanted += 1
        try:
            has_lock = self.lock.acquire(False)
            if not has_lock:
                self.control.wake()
                has_lock = self.lock.acquire(timeout=0.05)
        finally:
            self._wanted -= 1
        if has_lock:
            try:
                while self._queue and not work.done():
                    self._run_job(self._queue.popleft())
                if not work.done():
                    self._move_control_frames()
            finally:
                self.lock.release()

    def _run_job(self, job: Job) -> None:
        try:
            self._run(job.body, job.deadline, nests=job.nests)
        except Exception as exc:  # noqa: BLE001 - the work raises it
            # Without a traceback: its frames hold the work (a cycle) and the engine.
            job.work.finish(same_again(exc))
        except BaseException:  # Ctrl-C in a helping thread: others may wait
            job.work.finish(self.failure)
            raise
        else:
            self._turns.finish(job.work, self._run_job, self._pause)

    def _pause(self) -> bool:
        """Wait for a wake-up or for frames; return whether the group goes on."""
        try:
            is_ready = bool(wait_ready(self.control.wanted(), NAP_S))
            self.check()
            self.control.progress(stalled_s=0.0 if is_ready else NAP_S)
        except Exception as exc:  # noqa: BLE001 - a bug must not end the thread silently
            self.broken(exc)
        return self.failure is None and not self._closing

    def _move_control_frames(self) -> None:
        """Move control frames and wait a moment for more; ``wake`` ends the wait."""
        try:
            self.check()
            self.control.progress()
            if self.control.has_pending():
                wait_ready(self.control.wanted(), NAP_S)
                self.control.progress(stalled_s=NAP_S)
        except Exception as exc:  # noqa: BLE001 - a bug must not end the thread silently
            self.broken(exc)

    def _ensure_thread(self) -> None:
        if self.control.has_pending():
            self.control.wake()  # the thread may be waiting for a message
        with self._thread_lock:
            if self._news.empty():
                self._news.put(None)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name=self._name, daemon=True
                )
                self._thread.start()

    def _serve(self) -> None:
        """Run queued jobs in the background thread until it has been idle."""
        while self.failure is None and not self._closing:
            with contextlib.suppress(Empty):
                if not self._serve_once():
                    self._news.get(timeout=self._left_s() if self._queue else LINGER_S)
                continue
            with self._thread_lock:
                if self._news.empty() and not self._queue:
                    self._thread = None
                    return

    def _left_s(self) -> float:
        """Time for which queued jobs are postponed."""
        return self.postponement.left_s(self._queue)

    def _serve_once(self) -> bool:
        """Run one job or move frames; return False if there is nothing to do."""
        is_due = bool(self._queue) and not self._left_s()
        if not (is_due or self.control.aborted or self.control.has_pending()):
            return False  # the thread that waits for a job often runs it
        if self._wanted:
            relax()  # a waiting caller runs the queue sooner than this thread
        with self.lock:
            if self.control.aborted is not None:
                self.broken(self.control.aborted)
                return True
            if self._queue and not self._left_s():  # it may be another job by now
                self._run_job(self._queue.popleft())
                return True
            if self.control.has_pending():
                self._move_control_frames()
                return True
        return False

    # -- the end -------------------------------------------------------------------

    def abort(self, error: GroupAborted) -> None:
        """End the group from any thread; pending calls raise ``error`` at once."""
        if self.failure is not None or self.control.aborted is not None:
            return
        self.control.aborted = error
        self.control.wake()
        # A thread that holds the engine is awake now and sees the flag. If there is
        # none, end the group here; if it is too busy, the background thread does later.
        if self.lock.acquire(timeout=0.005):
            try:
                self.broken(error)
            finally:
                self.lock.release()
        else:
            self._ensure_thread()

    def leave_to_parent(self) -> None:
        """Fail every call from now on: this process was forked from the group's own.

        What other threads did at that moment nobody ends here, nor frees their locks.
        """
        self.failure = self.inherited = GroupAborted(
            "the group belongs to the process that this one was forked from; "
            "a forked process has to form a group of its own"
        )
        if self._owner != get_ident():
            self.lock = threading.Lock()
        self._thread, self._thread_lock = None, threading.Lock()

    def close(self, timeout_s: float, hang_up: Callable[[], None]) -> None:
        """Say goodbye, end the background thread and call ``hang_up``.

        A running operation is aborted: that of another thread after ``timeout_s``; that
        of this thread, if this is a signal handler during it, when it continues.
        """
        self._closing = True
        self._news.put(None)
        self.control.wake()
        reason = GroupAborted("closed while an operation was running")
        if self._owner == get_ident():
            self.control.aborted = self.control.aborted or reason
            self._hang_up = hang_up
            return
        # The background thread may hold the lock and take it again and again.
        if not self.lock.acquire(timeout=timeout_s):
            self.control.aborted = self.control.aborted or reason
            self.control.wake()
            if not self.lock.acquire(timeout=timeout_s):
                _log.warning("group not closed: a running operation does not end")
                return
        try:
            self._say_goodbye()
        finally:
            self.lock.release()
        with self._thread_lock:  # one that is known has been started
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
        hang_up()

    def _say_goodbye(self) -> None:
        if self.control.aborted is not None:
            self.broken(self.control.aborted)
        if self.failure is None:
            with contextlib.suppress(OSError, RingleaderError):
                self.control.say_goodbye()
            self.failure = GroupAborted("the group is closed")
            self._fail_all(self.failure)
