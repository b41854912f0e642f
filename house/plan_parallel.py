DOCS = {
 "parallel.trainer": "``parallelize`` distributes a model; the ``Trainer`` it returns makes the steps.",
 "parallel.microbatches": "Runs the micro-batches of a step in turn, and weighs each rank's batch.",
 "parallel.same_model": "All ranks start with the same model: its layout is compared, its values are sent.",
 "parallel.strategies.pipeline": """``pipeline``: each rank has some layers, and passes activations to the next.

Torch's schedules run the stages; gradients are summed over replicas, and over stages
that share a parameter.""",
 "parallel.pipeline_plan": """Chooses the layers of each stage of a pipeline over unlike machines; pure functions.

What was measured of layers and machines goes in; a plan and the text that is printed
before it runs come out.""",
 "parallel.data_plan": "Chooses how many rows of a batch a machine gets that has the whole model; pure.",
 "parallel.layer_measurement": """Measures the layers of the real model and this machine, with a real micro-batch.

All ranks then learn what each of them has measured; nothing is pickled.""",
 "parallel.strategies.tensor": None,
}
DOCS = {k: v for k, v in DOCS.items() if v}
MOVES = {}
def _(new, *olds): MOVES["parallel." + new] = ["parallel." + o for o in olds]
_("trainer", "parallelize", "trainer", "runner", "gradients", "loss_scale")
_("strategy_options", "options", "announce")
_("rank_grid", "grid")
_("microbatches", "microbatch_runner", "batch", "batch_shares", "exchange_device")
_("same_model", "sync_module_states", "layout_check")
_("sync_batch_norm", "sync_batch_norm", "moments")
_("strategies.ddp", "strategies.ddp")
_("strategies.fsdp", "strategies.fsdp", "blocks")
_("strategies.tensor", "strategies.tensor", "tensor_plan")
_("strategies.pipeline", "strategies.pipeline", "pipeline.runner", "pipeline.torch_schedule", "pipeline.stage_module", "pipeline.sharded_stages", "pipeline.gradient_sums")
_("pipeline_plan", "plan.pipeline_plan", "plan.report", "plan.partition", "plan.schedule", "plan.memory", "plan.profile", "plan.table")
_("data_plan", "plan.data_plan", "plan.shares")
_("layer_measurement", "measurement.data_plan", "measurement.measure", "measurement.layers", "measurement.boundary", "measurement.sample", "measurement.optimizer_size", "measurement.leaves", "measurement.unchanged", "measurement.exchange")
_("machine_memory", "measurement.machine_memory")
RENAMES = {}
KEEP = {"parallel.strategies.fsdp"}
FACE = {"parallelize": "public", "SyncBatchNorm": "public", "sync_module_states": "public", "usable_memory": "elastic: is there room for a second copy"}
