DOCS = {
 "torch_backend": "The torch.distributed backend ``ringleader``: a group as a torch ProcessGroup.",
 "torch_backend.torch_release": "The name by which torch knows us, and the releases of torch that are tested.",
 "torch_backend.one_gpu": """Collectives of ranks whose tensors are on one GPU: in memory that all of them map.

The ranks compare what they were called for, then each copies its tensor to its slot in
device memory that all of them map (CUDA IPC), and the GPU combines the slots, piece by
piece.""",
 "torch_backend.ddp_reducer": """What the reducer of DistributedDataParallel takes for our process group.

Its buckets lie in memory that all ranks of a host have mapped, or on the GPU that they
share, and are reduced there.""",
 "torch_backend.surviving_ddp": """DistributedDataParallel and Hugging Face's Trainer, when ranks are lost.

A communication hook reduces the buckets of a backward out of place, and completes all
of them together: after the step has been delivered, and so with one set of members. If
a rank is lost, the gradient is the mean over those that are alive.""",
 "torch_backend.dispatch": """How C++ callers in torch reach a process group in Python.

They ask it for the backend of a device, and call kernels of the dispatcher for methods
that torch's trampoline does not forward.""",
 "torch_backend.profiling": "What torch's profiler and compiler see of our operations.",
 "torch_backend.availability": "Which backends of torch and which links can be used on this machine, and why not.",
 "torch_backend.torch_work": "Our operations as torch's Work and Future, completed by threads.",
 "torch_backend.repeated_calls": "Calls of torch that are like earlier ones, with hardly any Python.",
}
MOVES = {"torch_backend": ["backend"]}
def _(new, *olds): MOVES["torch_backend." + new] = ["backend." + o for o in olds]
_("registration", "register")
_("create", "create")
_("backend_options", "options")
_("torch_release", "torch_release", "name")
_("run_join", "run_join")
_("torch_patches", "torch_patches", "default_backend", "device_map", "group_creation", "async_checkpoints", "ddp_reducer")
_("process_group", "process_group", "underlying_group", "monitored_barrier", "coo_all_reduce")
_("torch_arguments", "torch_options")
_("rank_facts", "rank_facts")
_("torch_work", "work", "completion_pool", "error_context")
_("repeated_calls", "repeated_calls", "short_device_calls")
_("dispatch", "device_backend", "dispatcher_kernels")
_("profiling", "profiling", "dynamo")
_("staging", "staging", "staged_chunk", "host_run", "device_relay", "host_memory")
_("device", "device")
_("one_gpu", "device_exchange", "device_call", "device_collectives", "device_slots", "device_memory")
_("intra_host", "intra_host")
_("availability", "availability", "link_availability")
_("ddp_reducer", "reducer_group", "shared_buckets", "open_file", "device_buckets")
_("surviving_group", "surviving_group")
_("surviving_ddp", "surviving_ddp", "trainer_saves")
_("surviving_collectives", "living_collectives")
RENAMES = {
 # wanted by others, who read them without the name of the module
 "backend.register.register": "register_backend", "backend.register.autoload": "autoload_backend",
 "backend.run_join.set_join": "set_run_join", "backend.run_join.join": "join_run_of_script",
 "backend.torch_release.minor": "minor_release", "backend.name.NAME": "BACKEND_NAME",
 "backend.torch_options.reduction": "reduction_of", "backend.living_collectives.Collective": "SurvivingCollective",
 "backend.device_map.install": "install_device_maps", "backend.device_map._create": "_create_by_device_map",
 "backend.default_backend._create": "_create_ours_by_default", "backend.default_backend._options": "_own_options",
 "backend.host_memory.check": "check_host_copy", "backend.host_memory.require_allowed": "require_host_copies",
 "backend.torch_release.remark": "torch_release_remark",
 "backend.link_availability._PROBES": "_LINK_PROBES", "backend.link_availability._mpi": "_mpi_link",
 "backend.device_memory.device_id": "gpu_id",
 "backend.coo_all_reduce.all_reduce": "all_reduce_coo", "backend.monitored_barrier.run": "run_monitored_barrier",
 "backend.device_memory.grant": "grant_memory", "backend.device_memory.refuse": "refuse_to_share", "backend.device_memory.open_grant": "open_grant",
 "backend.staged_chunk.cut": "cut_into_chunks", "backend.trainer_saves.install": "install_trainer_saves",
}
EDITS = {
 "backend.device_buckets": [("(device_exchange.py)", "(one_gpu.py)"), ("see work.py", "see torch_work.py")],
 "backend.process_group": [("device_backend.py, and dispatcher_kernels.py before torch 2.14, serve the others. torch", "dispatch.py serves the others. torch")],
 "backend.staging": [("see device_relay.py", "see DeviceRelay")],
 "backend.ddp_reducer": [("See reducer_group.py.", "See ddp_reducer.py.")],
 "backend.underlying_group": [("from torch.distributed import ProcessGroup", "from torch._C._distributed_c10d import ProcessGroup")]}
FACE = {
 "BackendOptions": "ringleader.BackendOptions", "backends": "ringleader.backends, cli.backends", "require_backend": "ringleader.require_backend",
 "autoload_backend": "launch: every import torch", "register_backend": "launch: torch 2.14 and later",
 "set_run_join": "launch: who joins a script's run", "SurvivingCollective": "elastic: what Survivors runs",
 "ringleader_group": "compression, parallel, rpc: our group behind a torch group", "RingleaderGroup": "compression.communicator: isinstance; can be ringleader_group(...) is not None",
 "check_host_copy": "compression", "reduction_of": "compression: FSDP hook", "Device": "compression", "Event": "compression", "device_of": "compression",
 "BackendWork": "compression", "CompletionPool": "compression", "ErrorContext": "compression", "GroupIdentity": "compression",
 "new_group_like": "checkpoint, data: a group of their own for the background", "BACKEND_NAME": "data", "minor_release": "cluster: fingerprint (light: no torch)",
}
