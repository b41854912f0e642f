DOCS = {
 "data.file_listing": """The files under a path with the SHA-256 of each chunk, and verified copies of them.

A listing travels from the machine that has the files; a copy lies in the cache of this
machine. What has arrived stays there after a crash, and only the rest is fetched again.""",
 "data.block_cache": "Blocks of a served dataset, on the wire and on the disk of this machine.",
}
MOVES = {}
def _(new, *olds): MOVES["data." + new] = ["data." + o for o in olds]
_("sharding", "shard", "quotas")
_("permutation", "permutation")
_("file_fetch", "fetch", "transfer_plan")
_("file_listing", "listing", "cached_files")
_("file_names", "file_names")
_("served_dataset", "served_dataset", "block_service", "worker_requests")
_("block_cache", "block_cache", "item_block")
RENAMES = {
 "data.file_names.check_name": "check_file_name", "data.file_names.is_text": "is_utf8_name", "data.file_names.check_collisions": "check_name_collisions", "data.listing.read_chunk": "read_file_chunk",
 "data.item_block.pack": "pack_block", "data.item_block.check": "check_block",
 "data.block_cache.FOLDER": "BLOCKS_FOLDER", "data.cached_files.FOLDER": "FILES_FOLDER",
 "data.transfer_plan.waves": "transfer_waves",
}
FACE = {n: "public" for n in ("shard", "fetch", "dataset")}
FACE |= {n: "jobs, cli: names from another machine" for n in ("check_file_name", "is_utf8_name", "check_name_collisions")}
FACE |= {n: "internet: the files of a task" for n in ("CachedFiles", "Listing", "list_files", "encode_listing", "decode_listing", "read_file_chunk")}
FACE |= {"Permutation": "elastic: the order of samples"}
