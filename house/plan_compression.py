DOCS = {
 "compression.ddp_and_fsdp_hooks": """The hooks by which torch's DistributedDataParallel and FSDP2 compress gradients.

By name and for any backend; ``ringleader run --compress int8`` attaches them to scripts
that do not ask for it.""",
 "compression.reducers": """The reducer of every scheme: it turns the gradients of all ranks into their mean.

PowerSGD sends every matrix as a product of two thin ones; its arithmetic is here.""",
 "compression.gradient_bucket": "Gradients of several parameters in one vector, and what is kept between steps.",
 "compression.sparse_vectors": "Sparse vectors: which values of a vector are sent (top-k), and their wire format.",
}
MOVES = {"compression": ["compression"]}
def _(new, *olds): MOVES["compression." + new] = ["compression." + o for o in olds]
_("scheme", "scheme")
_("gradient_compressor", "compressor", "measured_reducer")
_("gradient_bucket", "bucket", "compressor_state")
_("reducers", "reducers", "powersgd", "low_rank")
_("seeded_random", "seeded_random")
_("sparse_vectors", "sparse_format", "topk")
_("sparse_all_reduce", "sparse_all_reduce", "sparse_cost")
_("communicator", "communicator")
_("ddp_and_fsdp_hooks", "comm_hook", "attached_hook", "env_hook", "fsdp_reduce_scatter")
RENAMES = {
 "compression.env_hook.install": "install_hook_of_environment",
 "compression.low_rank.orthonormalize": "orthonormalize",
 "compression.sparse_format.BLOCK": "SPARSE_BLOCK", "compression.sparse_format.pack": "pack_sparse", "compression.sparse_format.unpack": "unpack_sparse",
 "compression.sparse_format.num_blocks": "num_sparse_blocks", "compression.sparse_format.num_bytes": "num_sparse_bytes",
}
FACE = {n: "public" for n in ("compressor", "Compressor", "hook", "Hook", "fsdp")}
FACE |= {"compressor_of": "checkpoint: residuals of a model", "install_hook_of_environment": "launch: --compress", "parse": "cli.run_job: the name of a scheme (light: no torch)"}
FACE |= {n: "internet: sparse updates" for n in ("SparseVector", "pack_sparse", "unpack_sparse", "num_sparse_bytes", "ENTRY_BYTES", "topk_count", "topk_indices")}
