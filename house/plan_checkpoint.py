DOCS = {
 "checkpoint.saving": "Saves a checkpoint from all ranks, at once or in the background.",
 "checkpoint.rank_exchange": "What checkpoints need of a group, torch's or ours: bytes, agreement, disks.",
 "checkpoint.manifests": "What a checkpoint holds (its manifest), and which checkpoints there are.",
 "checkpoint.save_plan": "Which rank writes what: DCP's planners on all ranks, and their messages.",
 "checkpoint.dcp_storage": "The plug-ins with which torch.distributed.checkpoint (DCP) writes and reads.",
 "checkpoint.offline": "What ``ringleader checkpoint`` does: inspect, verify, export, reshard.",
 "checkpoint.value_encoding": "Encodes the values of a training state and the names of dtypes, without pickle.",
 "checkpoint.loading": """Loads the newest complete checkpoint, from whichever machines hold its parts.

``resume`` does it for a program that starts, so that a restart continues.""",
}
MOVES = {"checkpoint": ["checkpoint"]}
def _(new, *olds): MOVES["checkpoint." + new] = ["checkpoint." + o for o in olds]
_("saving", "save", "async_save", "background_save", "copies", "parameter_groups")
_("save_plan", "write_shards", "planners", "save_messages")
_("loading", "load", "resume", "unused_parameters")
_("training_state", "training_state")
_("value_encoding", "values", "dtypes")
_("dcp_storage", "dcp_writer", "dcp_reader", "dcp_metadata")
_("place_reader", "place_reader")
_("manifests", "manifest", "catalog", "retention")
_("storage", "storage")
_("rank_exchange", "byte_exchange", "group_adapters", "agreement", "shared_folders")
_("offline", "inspection", "export", "reshard")
RENAMES = {
 "checkpoint.save.KEEP": "KEEP_CHECKPOINTS", "checkpoint.training_state.collect": "collect_state", "checkpoint.agreement.together": "act_together",
 "checkpoint.byte_exchange.PIECE_BYTES": "EXCHANGE_PIECE_BYTES", "checkpoint.catalog.Found": "FoundOnDisk", "checkpoint.retention.remove_old": "remove_old_checkpoints",
 "checkpoint.inspection.Report": "CheckpointReport", "checkpoint.reshard.reshard": "reshard_checkpoint", "checkpoint.training_state.State": "TrainingState",
 "checkpoint.values.encode": "encode_value", "checkpoint.values.decode": "decode_value",
 "checkpoint.catalog.candidates": "complete_candidates", "checkpoint.catalog.folders": "checkpoint_folders",
 "checkpoint.dtypes.name_of": "dtype_name", "checkpoint.dtypes.dtype_of": "dtype_of_name",
 "checkpoint.manifest.file_name": "shard_file_name", "checkpoint.manifest.rank_of": "rank_of_shard_file",
 "checkpoint.manifest.MAX_BYTES": "MANIFEST_MAX_BYTES",
 "checkpoint.inspection.inspect": "inspect_checkpoints", "checkpoint.inspection.verify": "verify_checkpoints",
 "checkpoint.storage.write": "write_file",
}
EDITS = {"checkpoint.planners": [("``values.py``", "``encode_value``")]}
FACE = {n: "public" for n in ("save", "load", "resume", "folder", "async_save", "Saved", "Loaded", "Resumable", "Reader", "Writer", "SavePlanner", "LoadPlanner", "DamagedCheckpoint")}
FACE |= {n: "elastic" for n in ("load_state", "BackgroundSaver", "KEEP_CHECKPOINTS", "TrainingState", "Stateful", "collect_state")}
FACE |= {n: "elastic, data: values without pickle" for n in ("encode_value", "decode_value", "dtype_name", "dtype_of_name")}
FACE |= {n: "data (elastic: ByteExchange)" for n in ("ByteExchange", "Transfer", "EXCHANGE_PIECE_BYTES", "act_together", "find_disks", "exchange_of", "FolderStorage")}
FACE |= {n: "cli.checkpoint" for n in ("FoundOnDisk", "remove_old_checkpoints", "CheckpointReport", "export_file", "export_hugging_face", "inspect_checkpoints", "verify_checkpoints", "reshard_checkpoint", "Storage", "open_storage")}
