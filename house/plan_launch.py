"""launch: code in user processes: starts workers, brings them into rounds, says why they failed.

Run with move_pc.py after the plan of cluster, which takes what starts and asks agents.
"""

DOCS = {
    "launch": """Starts training: ``ringleader run``, torchrun, ``join``, ``WorkerNode``.

All of them enter a round by ``rendezvous``: rank, store and credentials come from the
agent of the machine.""",
    "launch.program": """``Program``: what the workers run, and what its source tells before it runs.

Which modules it imports, what must be equal on all machines, whether it survives, can
be planned, or needs an interpreter of its own.""",
    "launch.fork_server": """``ForkServer``: starts workers by forking a process that has imported torch.

Importing torch takes 2.4 s of a core, and ``torch._dynamo``, which every optimizer
imports, 1.7 s more. The launcher needs torch itself. Right after importing it, it forks
this server, which imports the rest while the machines look for each other. Every worker
is a fork of the server; ``fork_client`` stands for it where torch's elastic agent
expects a process that it started. CUDA stays untouched before the fork.""",
    "launch.failure_policy": """What a failure means for the job, here and on other machines.

``SurvivalPolicy`` is the one of ``ringleader run --survive``.""",
    "launch.torch_agent": """``run_workers``: runs the workers of this machine on torch's elastic agent.

``AgentRendezvous`` is its rendezvous, through a ringleader agent; torchrun uses that
alone, with the backends ``mdns`` and ``grpc``.""",
    "launch.without_launcher": """Forms a group from a plain Python process: ``join`` and ``init_process_group``.

With ``init_method="mdns://"`` or ``"grpc://HOST:PORT"``, or under mpirun and srun.""",
    "launch.worker_node": """``WorkerNode``: a worker with a life cycle, for programs that a platform runs.

Start, readiness, health over HTTP and gRPC, and shutdown.""",
}

MOVES = {
    "launch.program": [
        "node.launch.program",
        "node.launch.local_modules",
        "node.launch.job_fingerprint",
        "node.launch.survival_notice",
        "node.launch.dry_run",
        "node.launch.named_backend",
        "node.launch.new_interpreter",
        "node.launch.environment_changes",
    ],
    "launch.rendezvous": ["node.launch.rendezvous"],
    "launch.torch_agent": [
        "node.launch.elastic_agent",
        "node.launch.elastic_rendezvous",
        "node.launch.round_store",
        "node.launch.launch_folder",
        "node.launch.interrupts",
    ],
    "launch.failure_report": ["node.launch.failure_report"],
    "launch.failure_policy": ["node.launch.failure_policy", "node.launch.survival_policy"],
    "launch.fork_server": ["node.launch.fork_server", "node.launch.forked_worker", "node.launch.warm_run"],
    "launch.fork_client": ["node.launch.fork_client"],
    "launch.warm_process": ["node.launch.warm_process"],
    "launch.parent_watch": ["node.launch.end_with_parent"],
    "launch.worker_main": ["node.launch.worker_main", "node.launch.process_exit"],
    "launch.without_launcher": [
        "node.launch.join",
        "node.launch.own_agent",
        "node.launch.init_method",
        "node.launch.launcher_init_method",
    ],
    "launch.torch_entry_points": ["node.launch.torch_entry_points"],
    "launch.worker_node": [
        "node.worker.worker_node",
        "node.worker.health_server",
        "node.worker.readiness",
        "node.worker.shared_probe",
        "node.worker.closers",
    ],
}

# the file that is run in each worker; its path is what its users need
KEEP = {"node.launch.worker_main"}

RENAMES = {
    "node.launch.rendezvous.LOOPBACK": "STORE_HOST",
}

FACE = {
    **dict.fromkeys(("join", "should_rejoin", "snapshot", "WorkerNode"), "`import ringleader`, cli demo"),
    **dict.fromkeys(("Program", "find_program", "LocalSources", "find_sources", "job_fingerprint", "check_dry_run", "plans_by_itself",
                     "check_survival", "check_partition", "survival_notice", "names_gloo", "needs_new_interpreter"), "cli run, until a LaunchSpec"),
    **dict.fromkeys(("run_workers", "Workers", "AgentRendezvous", "JobFailed", "STORE_HOST", "ForkServer", "fork_command", "become_warm_run",
                     "warm_command", "worker_main", "leave", "end_with_parent", "kill_on_death_of_parent", "is_consequence"), "cli, jobs, elastic"),
}
