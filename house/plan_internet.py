DOCS = {
 "internet": "Training over the internet: a parameter server and its workers.",
 "internet.server": "The parameter server: keeps the weights, and applies the updates of workers.",
 "internet.worker": "The worker: computes updates for a parameter server.",
 "internet.tasks": "Tasks: what is trained, built in or loaded from a file.",
 "internet.bodies": "What bodies of requests hold: the weights of a model, and updates; its manifest.",
 "internet.server.scheduler": None,
 "internet.server.weight_updates": "The weights of a run, and how the updates of a round become one step.",
 "internet.server.update_checks": "What an update must pass before it counts: its form, and its norm.",
 "internet.server.admission": "Admits workers by the join link or by a PIN, and keeps out the quarantined.",
 "internet.server.http_requests": "What every request meets: limits, parsing, authentication, and answers.",
 "internet.server.http_app": "The HTTP endpoints of the server, except those for updates.",
 "internet.server.updates_endpoint": "The endpoints for updates: receive a body, resume it, report the verdict.",
 "internet.server.connection_limits": """Accepts connections, and limits their number and the time that each may waste.

They wait for their first byte and for their turn, with limits per network.""",
 "internet.server.run_files": """The files of a run: checkpoints of the weights, and the journal of what came after.

All have checksums: a damaged file is recognised before anything uses it.""",
 "internet.server.run_store": "Keeps a run on disk, and restores it: checkpoints, and a journal since.",
 "internet.server.serving": "Opens a run and serves it over HTTP until it is over.",
 "internet.server.run_plan": "The plan of a training run: its settings, and the optimizer that they choose.",
 "internet.worker.joining": "Joins a run: the PIN, what the server may ask, and the files of the task.",
 "internet.worker.server_session": "Talks to the server: repeats requests, resumes downloads and uploads.",
 "internet.worker.server_address": "Where the server is, and how the worker knows that it is the right one.",
 "internet.worker.update_computation": "Computes updates from weights and batch numbers; batches are read ahead.",
 "internet.worker.cluster_worker": "ClusterWorker: one worker for the server, computed by all machines of a cluster.",
 "internet.tasks.task": "A task: the model, samples and loss that are trained, and its batches.",
}
MOVES = {"internet": ["paramserver"], "internet.server": ["paramserver.server"], "internet.worker": ["paramserver.worker"], "internet.tasks": ["paramserver.tasks"]}
def _(new, *olds): MOVES["internet." + new] = ["paramserver." + o for o in olds]
MOVES["internet.protocol"] = ["paramserver.protocol.messages", "paramserver.protocol.join_link"]
_("bodies", "protocol.bodies", "protocol.manifest")
_("compressed_body", "protocol.compressed_body")
_("evaluation", "evaluation")
_("tasks.task", "tasks.task", "tasks.samples", "tasks.batch_order", "tasks.device")
_("tasks.task_loading", "tasks.loading")
_("tasks.chars", "tasks.chars")
_("tasks.digits", "tasks.digits")
_("tasks.images", "tasks.images", "tasks.idx")
_("tasks.mnist", "tasks.mnist")
_("server.serving", "server.run", "server.http.http_server")
_("server.run_plan", "server.plan", "server.outer_optimizer")
_("server.served_run", "server.training", "server.weights_thread", "server.traffic")
_("server.scheduler", "server.scheduler", "server.round_scheduler", "server.update_verdict", "server.worker_record", "server.worker_table", "server.round_shards", "server.shard_durations", "server.update_headers", "server.loss_curve")
_("server.weight_updates", "server.global_weights", "server.aggregation")
_("server.update_checks", "server.update_checks", "server.update_norms")
_("server.admission", "server.admission", "server.quarantined_sources")
_("server.http_app", "server.http.app", "server.http.data_endpoint", "server.http.pin_pairing", "server.http.status", "server.http.status_page", "server.http.server_metrics")
_("server.updates_endpoint", "server.http.update_endpoint", "server.http.upload_buffers")
_("server.http_requests", "server.http.auth", "server.http.request_parsing", "server.http.responses", "server.http.request_limits")
_("server.connection_limits", "server.http.connection_limits", "server.http.waiting_connections", "server.http.client_network")
_("server.openapi", "protocol.openapi")
_("server.run_files", "server.storage.checkpoint", "server.storage.journal", "server.storage.journal_records", "server.storage.checked_files")
_("server.run_store", "server.storage.run_store", "server.storage.recovery", "server.storage.scheduler_state")
_("worker.internet_worker", "worker.worker", "worker.refusals")
_("worker.joining", "worker.join", "worker.agreement", "worker.pin_pairing", "worker.data_files")
_("worker.server_session", "worker.session", "worker.response_body", "worker.transfers")
_("worker.server_address", "worker.server_address", "worker.pinned_tls", "worker.scheme_probe", "worker.http_errors")
_("worker.update_computation", "worker.trainer", "worker.prefetch", "worker.error_feedback")
_("worker.cluster_worker", "worker.cluster_worker", "worker.cluster", "worker.cluster_trainer")
_("worker.work_observer", "worker.observer")
DOCS = {k: v for k, v in DOCS.items() if v}
RENAMES = {
 "paramserver.tasks.digits.stored": "stored_digits", "paramserver.evaluation.evaluate": "evaluate_weights", "paramserver.evaluation.export": "export_weights",
 "paramserver.protocol.bodies.CODECS": "BODY_CODECS",
 "paramserver.protocol.join_link.build": "build_join_link", "paramserver.protocol.join_link.parse": "parse_join_link",
 "paramserver.server.http.status_page.respond": "respond_page", "paramserver.server.http.status_page.PATHS": "PAGE_PATHS",
 "paramserver.server.storage.journal.doubt": "doubt_about_journal", "paramserver.server.storage.journal.end_path": "journal_end_path",
 "paramserver.tasks.idx.files": "idx_files", "paramserver.tasks.idx.images": "read_idx_images", "paramserver.tasks.idx.labels": "read_idx_labels",
 "paramserver.server.round_scheduler.without": "lease_without",
}
EDITS = {
 "paramserver.server.scheduler": [("mode is in round_scheduler.py.", "mode is in RoundScheduler.")],
}
KEEP = {"paramserver.tasks.images"}
FACE = {n: "cli.serve" for n in ("open_run", "Run", "ServerOptions", "HttpServer", "ListenAddress", "Plan", "LOCAL_STEPS", "Aggregation", "Scheduler", "build_join_link", "parse_join_link", "load_task")}
FACE |= {n: "cli.work" for n in ("Worker", "ClusterWorker", "WorkerSettings", "ServerAddress", "Observer", "Progress", "JoinAnswer")}
FACE |= {n: "cli.evaluate" for n in ("Evaluation", "Example", "Task", "pick_device", "find_weights", "load_model", "evaluate_weights", "export_weights")}
FACE |= {"stored_digits": "cli.demo"}
