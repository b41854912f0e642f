"""A compressor: one scheme, with all that it remembers from step to step."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ringleader.compression.bucket import Bucket
from ringleader.compression.memory import BASIS, RESIDUAL, Memory, Slot
from ringleader.compression.methods import reducer
from ringleader.compression.peers import (
    Peers,
    Ranks,
    default_group,
    gather_numbers,
    our_group,
    peers_of,
)
from ringleader.compression.scheme import Method, parse
from ringleader.errors import CallMismatch, ConfigError
from ringleader.groups.group import Group

_FACTS = ("scheme", "seed", "step")


def compressor(
    name: str,
    *,
    feedback: bool = True,
    momentum: float | None = None,
    seed: int = 0,
) -> Compressor:
    """A compressor for the scheme ``name``, as "int8", "topk:0.01" or "powersgd:2".

    ``feedback``: what is lost of a gradient is added to the next one. ``momentum``: for
    topk and randomk, send velocities instead of gradients, so that what is late comes
    with its momentum; the optimizer must then have none. ``seed``: for what is drawn by
    chance. All of it is the same on all ranks.
    """
    return Compressor(name, feedback=feedback, momentum=momentum, seed=seed)


class Compressor:
    """Averages gradients over the ranks of a group in fewer bytes.

    A step is everything from ``begin`` to ``commit``; ``average`` alone is one, too.
    Until ``commit`` nothing that is remembered changes: after a failure, and ``abort``,
    the step can be repeated with another group. All ranks make the same calls.
    """

    def __init__(
        self, name: str, *, feedback: bool, momentum: float | None, seed: int
    ) -> None:
        self.scheme = parse(name)
        if momentum is not None and not 0 < momentum < 1:
            text = f"momentum is above 0 and below 1, not {momentum!r}"
            raise ConfigError(f"compression: {text}")
        if momentum is not None and not (self.scheme.is_sparse and feedback):
            text = "momentum correction is for topk and randomk with feedback"
            raise ConfigError(f"compression: {text}, not for {name!r}")
        if not 0 <= seed < 2**63:
            raise ConfigError(f"compression: seed {seed!r} is no whole number >= 0")
        self.seed = seed
        self._feedback = feedback and self.scheme.method is not Method.NONE
        self._momentum = momentum
        self._memory = Memory()
        self._reducer = reducer(self.scheme)
        self._is_open = False
        self._group: weakref.ref[object] | None = None
        """The present one. Its id would not do: the next one may get the same."""
        self._agreed: set[tuple[Slot, ...]] = set()
        """Buckets that all ranks of the present group are known to see alike."""

    # -- use -----------------------------------------------------------------------

    def average(self, group: Ranks, tensors: Mapping[str, Tensor]) -> None:
        """Average everybody's ``tensors`` over ``group``, in place.

        Names and shapes are the same on all ranks, in any order. They travel as
        float32, whatever they are. ``group`` is a Group, a ProcessGroup of torch's, or
        None for the default one; where it is of another backend than ours, codecs other
        than fp16 and bf16 are refused.
        """
        named = sorted(tensors.items())
        flat, slots = _flatten(named)
        where = default_group() if group is None else group
        if self._is_open:
            self._average(where, flat, slots)
        else:
            self._average_alone(where, flat, slots)
        for slot, (_, tensor) in zip(slots, named, strict=True):
            part = flat[slot.run]
            if part.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(part.view(tensor.shape))

    def _average_alone(
        self, group: Group | dist.ProcessGroup, flat: Tensor, slots: Sequence[Slot]
    ) -> None:
        self.begin()
        try:
            self._average(group, flat, slots)
        except BaseException:
            self.abort()
            raise
        self.commit()

    def _average(
        self, group: Group | dist.ProcessGroup, flat: Tensor, slots: Sequence[Slot]
    ) -> None:
        ours = our_group(group)
        if ours is not None:
            ours.together(lambda: self.reduce(group, flat, slots))
        else:
            self.reduce(group, flat, slots)

    def reduce(
        self,
        group: Group | dist.ProcessGroup,
        flat: Tensor,
        slots: Sequence[Slot],
        *,
        peers: Peers | None = None,
    ) -> None:
        """One bucket of the present step: ``flat`` becomes its mean, in place.

        ``peers`` instead of those of ``group``, where these are special.
        """
        if not flat.numel():
            return
        peers = peers or peers_of(group, flat.device, self.scheme.codec)
        if peers.size == 1:
            return
        with torch.no_grad(), np.errstate(all="ignore"):  # NaN is the user's affair
            if self.scheme.method is Method.NONE:
                peers.mean(flat)
                return
            self._agree(group, peers, slots)
            out = flat.to(torch.float32)
            if self.is_needless(group, len(out)):
                peers.mean(out)
            else:
                self._reducer.reduce(self._bucket(out, slots), peers)
            if out is not flat:
                flat.copy_(out)

    def is_needless(self, group: Group | dist.ProcessGroup, count: int) -> bool:
        """Whether ``count`` values are better averaged as they are: "auto" says so, and
        nothing is owed from when it did not.
        """
        ours = our_group(group)
        return (
            self.scheme.codec == "auto"
            and ours is not None
            and ours.auto_codec("all_reduce", 4 * count) is None
            and not self._memory.has(RESIDUAL)
        )

    def _bucket(self, out: Tensor, slots: Sequence[Slot]) -> Bucket:
        return Bucket(
            out,
            slots,
            self._memory,
            seed=self.seed,
            feedback=self._feedback,
            momentum=self._momentum,
        )

    # -- steps ---------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins; one that was neither committed nor aborted is forgotten."""
        self._memory.begin()
        self._is_open = True

    def commit(self) -> None:
        """Every bucket of the step has succeeded: remember what it left."""
        if not self._is_open:
            raise ConfigError("compression: commit() without begin()")
        self._is_open = False
        self._memory.commit()

    def abort(self) -> None:
        """The step failed: everything is as it was before it."""
        self._is_open = False
        self._memory.abort()

    # -- what is remembered --------------------------------------------------------

    def reset(self) -> None:
        """Forget everything, as if new; on all ranks alike."""
        self._is_open = False
        self._memory.clear()
        self._agreed.clear()

    def state_dict(self) -> dict[str, Tensor]:
        """All that is needed to go on from here; it differs from rank to rank."""
        return {
            "scheme": torch.tensor(
                list(self.scheme.name.encode()), dtype=torch.uint8, device="cpu"
            ),
            "seed": torch.tensor(self.seed, device="cpu"),
            "step": torch.tensor(self._memory.step, device="cpu"),
            **self._memory.tensors(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from where ``state`` was taken, on this rank of as many."""
        if missing := [fact for fact in _FACTS if fact not in state]:
            text = f"{', '.join(missing)} missing; is it the state of a compressor?"
            raise ConfigError(f"compression: {text}")
        name = bytes(state["scheme"].tolist()).decode(errors="replace")
        if name != self.scheme.name:
            text = f"the state is of {name!r}, this compressor is {self.scheme.name!r}"
            raise ConfigError(f"compression: {text}")
        rest = {key: value for key, value in state.items() if key not in _FACTS}
        self._memory.load(rest, int(state["step"]))
        self.seed = int(state["seed"])
        self._is_open = False
        self._agreed.clear()

    def _agree(
        self, group: Group | dist.ProcessGroup, peers: Peers, slots: Sequence[Slot]
    ) -> None:
        """Once per bucket and group: do all ranks mean the same parameters, the same
        scheme and the same step? Else their sums would be nonsense that nobody notices.
        """
        if self._group is None or self._group() is not group:
            self._agreed.clear()
            self._group = weakref.ref(group)
        bucket = tuple(slots)
        if bucket in self._agreed:
            return
        mine = self._digest(bucket)
        for peer, (theirs,) in enumerate(gather_numbers(peers, [mine])):
            if theirs != mine:
                text = (
                    "averages other parameters, or with another scheme, seed or step "
                    f"than {self.scheme.name!r}, {self.seed}, {self._memory.step} of "
                    "ours: call reset(), or load states of the same step, on all ranks"
                )
                raise CallMismatch(peer, text)
        self._agreed.add(bucket)

    def _digest(self, bucket: tuple[Slot, ...]) -> int:
        """63 bits that stand for all that ranks must agree on."""
        facts = (self.scheme.name, self.seed, self._memory.step, self._momentum)
        hashed = hashlib.blake2b(repr((facts, bucket)).encode(), digest_size=8)
        for slot in bucket:
            basis = self._memory.get(BASIS, slot.name)
            if basis is not None:
                hashed.update(basis.cpu().numpy().tobytes())
        return int.from_bytes(hashed.digest(), "little") >> 1


def _flatten(named: Sequence[tuple[str, Tensor]]) -> tuple[Tensor, list[Slot]]:
    """(all values in one vector, where each tensor's are): a copy, unless it is one
    contiguous tensor.
    """
    if not named:
        return torch.empty(0, device="cpu"), []
    for name, tensor in named:
        if not tensor.is_floating_point():
            raise ConfigError(f"compression: {name!r} is no floating-point tensor")
    if len({tensor.device for _, tensor in named}) > 1:
        raise ConfigError("compression: the tensors of a call are on one device")
    slots, start = [], 0
    for name, tensor in named:
        slots.append(Slot(name, start, tuple(tensor.shape)))
        start += tensor.numel()
    parts = [tensor.detach().reshape(-1) for _, tensor in named]
    kinds = {part.dtype for part in parts}
    if len(kinds) > 1:
        parts = [part.to(torch.float32) for part in parts]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)), slots
