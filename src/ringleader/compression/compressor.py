"""A compressor: one scheme with its state from step to step."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ringleader.backend.underlying_group import ringleader_group
from ringleader.compression.bucket import Bucket, flatten
from ringleader.compression.communicator import (
    AnyGroup,
    Communicator,
    all_gather_ints,
    default_group,
    make_communicator,
)
from ringleader.compression.compressor_state import (
    RESIDUAL,
    VELOCITY,
    CompressorState,
    ParameterSlice,
)
from ringleader.compression.measured_reducer import MeasuredReducer
from ringleader.compression.scheme import Method, parse
from ringleader.errors import CallMismatch, ConfigError
from ringleader.groups.group import Group, handle_of

_META_KEYS = ("scheme", "seed", "step")

Slices = Sequence[ParameterSlice]


def compressor(
    name: str,
    *,
    feedback: bool = True,
    momentum: float | None = None,
    seed: int = 0,
) -> Compressor:
    """Create a compressor for the scheme ``name``: "int8", "topk:0.01", "powersgd:2".

    Args:
        name: see the table in docs/compression.md.
        feedback: add the compression error of a gradient to the next one (error
            feedback).
        momentum: for topk and randomk, send velocities instead of gradients, so that
            delayed values arrive with their momentum. The optimizer must then have
            none.
        seed: for random selection and stochastic rounding.

    All arguments must be equal on all ranks.
    """
    return Compressor(name, feedback=feedback, momentum=momentum, seed=seed)


class Compressor:
    """Averages gradients over the ranks of a group in fewer bytes.

    A step is everything from ``begin`` to ``commit``; a single ``average`` is one, too.
    The state does not change until ``commit``: after a failure and ``abort`` the step
    can be repeated with another group. All ranks make the same calls.
    """

    def __init__(
        self, name: str, *, feedback: bool, momentum: float | None, seed: int
    ) -> None:
        self.scheme = parse(name)
        if momentum is not None and not 0 < momentum < 1:
            text = f"momentum must be above 0 and below 1, not {momentum!r}"
            raise ConfigError(f"compression: {text}")
        if momentum is not None and not (self.scheme.is_sparse and feedback):
            text = "momentum correction needs topk or randomk, with feedback"
            raise ConfigError(f"compression: {text}; it cannot be used with {name!r}")
        if not 0 <= seed < 2**63:
            raise ConfigError(
                f"compression: seed must be a whole number >= 0, not {seed!r}"
            )
        self.seed = seed
        self._feedback = feedback and self.scheme.method is not Method.NONE
        self._momentum = momentum
        self._state = CompressorState()
        self._reducer = MeasuredReducer(self.scheme)
        self._is_open = False
        self._group: weakref.ref[object] | None = None
        """The group of the last call. Not its id: a later group may get the same."""
        self._agreed: set[tuple[ParameterSlice, ...]] = set()
        """Buckets that all ranks of that group were found to agree on."""

    # -- use -----------------------------------------------------------------------

    def average(self, group: AnyGroup, tensors: Mapping[str, Tensor]) -> None:
        """Average ``tensors`` over all ranks of ``group``, in place.

        Names and shapes must be the same on all ranks, in any order. All dtypes are
        sent as float32. ``group`` is a Group, a ProcessGroup of torch, or None for the
        default one. With another backend than ringleader, only the codecs fp16 and bf16
        are supported.
        """
        named = sorted(tensors.items())
        flat, parameters = flatten(named)
        where = default_group() if group is None else group
        if self._is_open:
            self._average(where, flat, parameters)
        else:
            self._average_step(where, flat, parameters)
        for param, (_, tensor) in zip(parameters, named, strict=True):
            part = flat[param.span]
            if part.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(part.view(tensor.shape))

    def _average_step(
        self, group: Group | dist.ProcessGroup, flat: Tensor, parameters: Slices
    ) -> None:
        """Average in a step of its own."""
        self.begin()
        try:
            self._average(group, flat, parameters)
        except BaseException:
            self.abort()
            raise
        self.commit()

    def _average(
        self, group: Group | dist.ProcessGroup, flat: Tensor, parameters: Slices
    ) -> None:
        ours = ringleader_group(group)
        if ours is not None:
            handle_of(ours).together(lambda: self.reduce(group, flat, parameters))
        else:
            self.reduce(group, flat, parameters)

    def reduce(
        self,
        group: Group | dist.ProcessGroup,
        flat: Tensor,
        parameters: Slices,
        *,
        comm: Communicator | None = None,
    ) -> None:
        """Average one bucket of the present step, in place.

        ``comm`` replaces the communicator of ``group``.
        """
        if not flat.numel():
            return
        comm = comm or make_communicator(group, flat.device, self.scheme.codec)
        if comm.size == 1:
            return
        # NaN in gradients is the user's responsibility: no warnings about it.
        with torch.no_grad(), np.errstate(all="ignore"):
            if self.scheme.method is Method.NONE:
                comm.average(flat)
                return
            self._check_agreement(group, comm, parameters)
            out = flat.to(torch.float32)
            if self.is_uncompressed(group, len(out)):
                comm.average(out)
            else:
                self._reducer.reduce(self._bucket(out, parameters), comm)
            if out is not flat:
                flat.copy_(out)

    def reduce_into(
        self,
        out: Tensor,
        group: Group | dist.ProcessGroup,
        source: Tensor,
        parameters: Slices,
    ) -> None:
        """Average one bucket of the present step into ``out``.

        ``source`` is not written, so that a step that fails can be repeated from it.
        """
        out.copy_(source)
        self._average(group, out, parameters)

    def is_uncompressed(self, group: Group | dist.ProcessGroup, count: int) -> bool:
        """Return whether "auto" sends ``count`` values uncompressed.

        It does if that is predicted to be faster and there is no residual to send.
        """
        ours = ringleader_group(group)
        return (
            self.scheme.codec == "auto"
            and ours is not None
            and handle_of(ours).auto_codec("all_reduce", 4 * count) is None
            and not self._state.has(RESIDUAL)
        )

    def _bucket(self, out: Tensor, parameters: Slices) -> Bucket:
        return Bucket(
            out,
            parameters,
            self._state,
            seed=self.seed,
            feedback=self._feedback,
            momentum=self._momentum,
        )

    # -- steps ---------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a step; one that was neither committed nor aborted is dropped."""
        self._state.begin()
        self._is_open = True

    def commit(self) -> None:
        """End a step whose buckets have all succeeded, and keep its state."""
        if not self._is_open:
            raise ConfigError("compression: commit() without begin()")
        self._is_open = False
        self._state.commit()

    def abort(self) -> None:
        """End a step that failed; the state is as it was before the step."""
        self._is_open = False
        self._state.abort()

    # -- state ---------------------------------------------------------------------

    def reset(self) -> None:
        """Return to the initial state. Call it on all ranks."""
        self._is_open = False
        self._state.clear()
        self._agreed.clear()

    state_is_per_rank = True
    """Tells ``ringleader.checkpoint`` to store it for each rank."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint. It differs between ranks."""
        return {
            "scheme": torch.tensor(
                list(self.scheme.name.encode()), dtype=torch.uint8, device="cpu"
            ),
            "seed": torch.tensor(self.seed, device="cpu"),
            "step": torch.tensor(self._state.step, device="cpu"),
            **self._state.tensors(),
        }

    def shared_state(self) -> dict[str, Tensor]:
        """Return the part of ``state_dict()`` that is equal on all ranks.

        A rank that joins loads it, and so does one that got the result of a step from
        others: what its own encodings lacked of that step is unknown, and its old
        residual has been applied, so it begins with none.
        """
        local = (f"{RESIDUAL}.", f"{VELOCITY}.")
        state = self.state_dict()
        return {key: each for key, each in state.items() if not key.startswith(local)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a ``state_dict`` of the same rank in a group of the same size, or the
        ``shared_state`` of any rank."""
        if missing := [key for key in _META_KEYS if key not in state]:
            text = f"{', '.join(missing)} missing; is it the state of a compressor?"
            raise ConfigError(f"compression: {text}")
        name = bytes(state["scheme"].tolist()).decode(errors="replace")
        if name != self.scheme.name:
            text = f"the state is of {name!r}, this compressor is {self.scheme.name!r}"
            raise ConfigError(f"compression: {text}")
        rest = {key: value for key, value in state.items() if key not in _META_KEYS}
        self._state.load(rest, int(state["step"]))
        self.seed = int(state["seed"])
        self._is_open = False
        self._agreed.clear()

    def _check_agreement(
        self, group: Group | dist.ProcessGroup, comm: Communicator, parameters: Slices
    ) -> None:
        """Check once per bucket and group that all ranks average the same thing.

        They must agree on parameters, scheme, seed and step. Otherwise their sums would
        be meaningless without any error. Raises CallMismatch.
        """
        if self._group is None or self._group() is not group:
            self._agreed.clear()
            self._group = weakref.ref(group)
        bucket = tuple(parameters)
        if bucket in self._agreed:
            return
        facts = (self.scheme.name, self.seed, self._momentum)
        mine = self._state.digest(facts, bucket)
        for peer, (theirs,) in enumerate(all_gather_ints(comm, [mine])):
            if theirs != mine:
                text = (
                    "averages other parameters, or uses another scheme, seed or step "
                    f"than this rank ({self.scheme.name!r}, {self.seed}, "
                    f"{self._state.step}): call reset(), or load states of the same "
                    "step, on all ranks"
                )
                raise CallMismatch(peer, text)
        self._agreed.add(bucket)
