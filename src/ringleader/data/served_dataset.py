"""``dataset``: the items of a dataset that one rank has, on all ranks.

Samples travel in blocks, when they are needed or, with ``shard``, before. A block is
kept on the disk of the machine that got it. Items are encoded as checkpoints encode
values: tensors, arrays, numbers, text, lists and dicts; nothing is pickled.
"""

from __future__ import annotations

import atexit
import os
import queue
import secrets
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

import msgspec
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from ringleader.backend.async_checkpoints import new_group_like
from ringleader.backend.name import NAME
from ringleader.checkpoint import values
from ringleader.checkpoint.agreement import together
from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.checkpoint.save import exchange_of
from ringleader.checkpoint.shared_folders import find_disks
from ringleader.checkpoint.storage import FolderStorage
from ringleader.data import block_cache
from ringleader.data.block_cache import BlockCache, CacheFolder
from ringleader.data.block_service import BlockClient, BlockServer
from ringleader.data.item_block import pack
from ringleader.data.worker_requests import RequestClient, RequestServer
from ringleader.decoding import from_json
from ringleader.errors import ConfigError, ProtocolError, RingleaderError
from ringleader.settings.cache import cache_folder

BLOCK_BYTES = 256 << 10
"""Aim for the size of a block. With smaller ones, small items cost a round trip each;
with larger ones, a rank gets many items that it needs much later."""

_MEASURED_ITEMS = 8
_PREFETCHED_BLOCKS = 4096
_END = -1
"""Instead of a block, ends the thread that fetches ahead."""
_TRIES = 3


class Shape(msgspec.Struct, frozen=True):
    """How a dataset is cut into blocks; the name of the folder in the caches."""

    items: int
    per_block: int
    token: str

    @property
    def blocks(self) -> int:
        return -(-self.items // self.per_block)

    def place(self, index: int) -> tuple[int, int]:
        """Return the block of an item and its position there."""
        return divmod(index, self.per_block)

    def count(self, block: int) -> int:
        """Return the number of items in a block."""
        return min(self.per_block, self.items - block * self.per_block)


def dataset(
    source: Dataset[Any] | None = None,
    *,
    max_bytes: int = block_cache.MAX_BYTES,
    timeout_s: float = 60.0,
    cache: str | os.PathLike[str] | None = None,
    group: dist.ProcessGroup | None = None,
) -> Dataset[Any]:
    """Return a dataset with the items of ``source``, which some ranks have; all call.

    Ranks without the data pass None. The first rank that has it sends items to those
    that do not, when they ask for them; with ``ringleader.shard``, before that. They
    keep at most ``max_bytes`` of them on their disk (``RINGLEADER_CACHE``) and wait
    ``timeout_s`` for an item. Works with a DataLoader's ``num_workers``. Items consist
    of tensors, arrays, numbers, text, and lists, tuples and dicts of these.

    Raises ConfigError on all ranks if nobody has the data, or if its items cannot be
    sent.
    """
    exchange = exchange_of(group)
    found = together(
        exchange,
        "use the dataset",
        lambda: b"-1" if source is None else b"%d" % len(source),  # type: ignore[arg-type]
    )
    lengths = [int(each) for each in found]
    owners = [rank for rank, items in enumerate(lengths) if items >= 0]
    if not owners:
        raise ConfigError(f"no rank of {exchange.size} passed a dataset, only None")
    if len({lengths[rank] for rank in owners}) > 1:
        text = ", ".join(f"rank {rank}: {lengths[rank]}" for rank in owners)
        raise ConfigError(f"the ranks have datasets of different lengths: {text}")
    if source is not None and len(owners) == exchange.size:
        return source
    owner = owners[0]
    own = _HeldDataset(source) if source is not None else None
    answers = together(
        exchange,
        "send the items",
        lambda: own.measure() if own is not None and exchange.rank == owner else b"",
    )
    shape = _decoded(owner, answers[owner])
    root = cache_folder(cache)
    disks = find_disks(FolderStorage(root), exchange)
    messages = _own_group(exchange)
    if own is not None:
        if exchange.rank == owner:
            BlockServer(messages, shape.blocks, own.block).start()
        together(exchange, "prepare the cache", lambda: None)
        return own
    folder = root / block_cache.FOLDER / shape.token
    client = BlockClient(messages, owner, timeout_s)
    mates = [r for r, disk in enumerate(disks) if disk == disks[exchange.rank]]
    first = next(rank for rank in mates if rank not in owners)
    served = ServedDataset(shape, BlockCache(folder, max_bytes), client)
    together(
        exchange,
        "prepare the cache",
        lambda: served.open(keeps_folder=exchange.rank == first),
    )
    return served


class _HeldDataset(Dataset[Any]):
    """The dataset on a rank that has it; a thread reads it for the others."""

    def __init__(self, source: Dataset[Any]) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._per_block = 1

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401  # the user's item
        if os.getpid() != self._pid:  # a worker process has a copy of its own
            return self._source[index]
        with self._lock:  # few datasets can be read by two threads
            return self._source[index]

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_pid": self._pid}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def measure(self) -> bytes:
        """Choose the size of a block by some items; return the shape, encoded."""
        items = len(self)
        if not items:
            raise ConfigError("the dataset is empty")
        chosen = sorted({items * n // _MEASURED_ITEMS for n in range(_MEASURED_ITEMS)})
        mean = sum(len(self._encoded(i)) for i in chosen) / len(chosen)
        self._per_block = max(1, min(items, int(BLOCK_BYTES / max(mean, 1))))
        shape = Shape(items, self._per_block, secrets.token_hex(16))
        return msgspec.json.encode(shape)

    def block(self, number: int) -> bytes:
        """Return a block of encoded items."""
        first = number * self._per_block
        last = min(first + self._per_block, len(self))
        return pack([self._encoded(index) for index in range(first, last)])

    def _encoded(self, index: int) -> bytes:
        try:
            return values.encode(self[index])
        except ConfigError as exc:
            raise ConfigError(f"item {index} cannot be sent: {exc}") from None


class ServedDataset(Dataset[Any]):
    """The dataset on a rank that does not have it."""

    def __init__(
        self, shape: Shape, cache: BlockCache, client: BlockClient | None
    ) -> None:
        self._shape = shape
        self._cache = cache
        self._client = client
        self._pid = os.getpid()
        self._address = ""
        self._requests: RequestClient | None = None
        self._lock = threading.Lock()
        self._ahead: queue.Queue[int] = queue.Queue(_PREFETCHED_BLOCKS)

    def open(self, *, keeps_folder: bool) -> None:
        """Make the cache, and begin to answer worker processes and to prefetch."""
        self._cache.make()
        self._folder = CacheFolder(self._cache.folder)
        if keeps_folder:
            self._folder.open()
        self._server = RequestServer(self._ensure)
        self._address = self._server.start()
        # A daemon: it waits for orders as long as the program runs.
        thread = threading.Thread(
            target=self._fetch_ahead, name="ringleader-data-ahead", daemon=True
        )
        thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Stop, and remove the cache of this dataset; the end of the program does."""
        atexit.unregister(self.close)
        with suppress(queue.Full):  # its thread has ended, or ends with the program
            self._ahead.put_nowait(_END)
        self._server.close()
        self._folder.close()

    def __len__(self) -> int:
        return self._shape.items

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401  # the user's item
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        block, position = self._shape.place(index % len(self))
        for _ in range(_TRIES):
            data = self._cache.read_item(block, position)
            if data is not None:
                return values.decode(data)
            self._cache.remove(block)  # if it is there, it is damaged
            self._ensure(block)
        text = f"item {index} is damaged in the cache again and again"
        raise ConfigError(f"{text}: {self._cache.folder}; is the disk broken?")

    def prefetch(self, indices: Iterable[int]) -> None:
        """Begin to get these items; ``shard`` says which it will need."""
        blocks = dict.fromkeys(self._shape.place(index)[0] for index in indices)
        for block in blocks:
            if not self._cache.has(block):
                try:
                    self._ahead.put_nowait(block)
                except queue.Full:
                    return  # they are fetched when they are needed

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker process needs that is not forked but spawned."""
        kept = ("_shape", "_cache", "_pid", "_address")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _client=None, _requests=None)

    def _ensure(self, block: int) -> None:
        """Bring a block into the cache."""
        if os.getpid() != self._pid:
            if self._requests is None:
                self._requests = RequestClient(self._address)
            self._requests.ensure(block)
            return
        assert self._client is not None
        with self._lock:
            if not self._cache.has(block):
                count = self._shape.count(block)
                self._cache.add(block, self._client.fetch(block, count))

    def _fetch_ahead(self) -> None:
        while True:
            block = self._ahead.get()
            if block == _END:
                return
            try:
                self._ensure(block)
            except (RingleaderError, RuntimeError):
                return  # who needs the block gets the same error


def _decoded(owner: int, data: bytes) -> Shape:
    try:
        shape = from_json(data, Shape)
    except msgspec.MsgspecError as exc:
        raise ProtocolError(owner, f"described its data wrongly: {exc}") from None
    is_token = (
        len(shape.token) == 32 and shape.token.isalnum() and shape.token.isascii()
    )
    if not (is_token and 1 <= shape.per_block <= shape.items):
        raise ProtocolError(owner, "described its data wrongly")
    return shape


def _own_group(exchange: ByteExchange) -> dist.ProcessGroup:
    """Form a group for requests, so that they do not mix with those of the training."""
    assert isinstance(exchange.group, dist.ProcessGroup)
    has_cpu = torch.device("cpu") in exchange.group._device_types
    backend = None if has_cpu else NAME
    made = new_group_like(exchange.group, backend, "ringleader: served data")
    return cast("dist.ProcessGroup", made)
