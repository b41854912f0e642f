"""The numbers of names on the wire. The tables are append-only."""

from __future__ import annotations

OPERATIONS = (
    "none",
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "send",
    "measure",
)
REDUCE_OPS = (
    "none",
    "sum",
    "mean",
    "min",
    "max",
    "product",
    "band",
    "bor",
    "bxor",
)
DTYPES = (
    "none",
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "complex32",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)
ALGORITHMS = (
    "none",
    "exchange",
    "direct",
    "ring",
    "doubling",
    "halving",
    "tree",
    "star",
    "shm",
    "hierarchy",
)
CODECS = ("none", "fp16", "bf16", "int8", "onebit")
