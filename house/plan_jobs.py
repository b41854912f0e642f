"""Jobs: programs that one command starts on several machines; with the old `project`.

The class names of `job_messages` are their tags on the wire (`tag=True`): never rename them.
`project/__init__` only re-exported: its names are followed to where they are (THROUGH), and it goes (GONE).
"""

DOCS = {
    "jobs.job_record": "``JobSpec`` and ``JobRecord``: what a job runs, how it stands, and how it ended.",
    "jobs.job_requests": "Requests about jobs to all machines at once: list, find, choose machines, stop.",
    "jobs.result_files": "``fetch_results`` and ``send_files``: brings files that a job wrote to the user.",
    "jobs.job_logs": "Output of a job: from the workers' sockets into its logs, from there to clients.",
    "jobs.job_folder": "``JobFolder``: the files of a job in ``~/.ringleader/jobs``, until pruned.",
    "jobs.project_files": "The files of a project: listed, hashed in chunks, kept in a store, and unpacked.\n\nOn the machine where a job is started::\n\n    project = collect_project(Path(\"train.py\"))  # lists and hashes; refuses too much\n    keep_project(project, store)                # snapshot in the user's store\n\nOn each machine of the job, after the chunks that ``missing_chunks`` names have arrived::\n\n    unpack_project(manifest, store, folder)             # completely or not at all\n\nAll of these block; an event loop calls them in a thread.",
    "jobs.project_environment": "What a project needs of a Python environment, and what a machine lacks of it.",
}

MOVES = {
    # what is said
    "jobs.job_record": ["jobs.protocol.job_spec", "jobs.protocol.job_record", "jobs.machine.outcome"],
    "jobs.job_messages": ["jobs.protocol.messages"],
    # where a command is typed
    "jobs.start_job": ["jobs.client.start_job", "jobs.client.twin_job"],
    "jobs.job_requests": ["jobs.client.job_requests", "jobs.client.channel", "jobs.client.job_summary",
                          "jobs.client.machine_choice"],
    "jobs.follow_job": ["jobs.client.follow_job", "jobs.client.output_view", "jobs.client.fold"],
    "jobs.result_files": ["jobs.client.fetch_results", "jobs.machine.result_files"],
    # on each machine of the job
    "jobs.install_jobs": ["jobs.machine.install_jobs"],
    "jobs.job_service": ["jobs.machine.job_service"],
    "jobs.job_preparation": ["jobs.machine.preparation", "jobs.machine.project_transfer", "jobs.machine.job_environment"],
    "jobs.job_supervisor": ["jobs.machine.supervisor", "jobs.machine.launcher"],
    "jobs.job_folder": ["jobs.machine.job_folder", "jobs.machine.job_end", "jobs.machine.prune_jobs"],
    "jobs.job_logs": ["jobs.machine.output_socket", "jobs.machine.log_files", "jobs.machine.output_stream"],
    # what a job needs: files and packages
    "jobs.project_files": ["project.project_files", "project.file_list", "project.manifest", "project.blob_store"],
    "jobs.project_environment": ["project.environment", "project.environment_check", "project.imports"],
    "jobs.made_environment": ["project.made_environment", "project.environment_recipe", "project.local_sources",
                              "project.command"],
    "jobs.facts_process": ["project.facts_process"],
}
THROUGH = ["project"]
GONE = ["project"]
RENAMES = {
    "project.local_sources.MAX_BYTES": "MAX_SOURCE_BYTES",
    "project.command.MAX_BYTES": "MAX_OUTPUT_BYTES",
    "project.environment_recipe.MAX_BYTES": "MAX_RECIPE_BYTES",
    "project.environment.MAX_BYTES": "MAX_NEEDS_BYTES",
    "project.manifest.check": "check_manifest",
    "project.manifest.encode": "encode_manifest",
    "project.manifest.decode": "decode_manifest",
    "project.manifest.Manifest": "ProjectManifest",
    "project.environment_check.Difference": "EnvironmentDifference",
    "project.environment_check.refuses": "refuses_job",
    "project.project_files.keep": "keep_project",
    "project.project_files.missing": "missing_chunks",
    "project.project_files.collect": "collect_project",
    "project.project_files.unpack": "unpack_project",
    "project.command.Command": "TimedCommand",
    "jobs.machine.job_end.settle": "settle_job",
    "jobs.client.output_view.Source": "OutputSource",
    "jobs.client.channel.Channel": "JobsChannel",
    "jobs.machine.preparation.Machine": "PreparingMachine",
    "jobs.machine.log_files.Segment": "LogSegment",
}
FACE = {
    "install": "cluster's agent, by name: adds the service (lazy)",
    # cli: run, logs, attach, stop, jobs, fetch, up, status
    "JobSpec": "cli run", "JobMachine": "cli run", "TerminalSize": "cli", "JobRecord": "cli", "JobState": "cli", "printable": "cli",
    "report_outcome": "cli run --here: why it failed",
    "JobsChannel": "cli", "ResidentAgent": "cli", "find_agent": "cli run", "require_agent": "cli",
    "list_jobs": "cli jobs, dashboard", "jobs_of": "cli", "find_job": "cli", "stop_everywhere": "cli stop, dashboard",
    "wait_for_end": "cli stop", "prune_everywhere": "cli jobs", "JobSummary": "cli, dashboard", "summarize": "cli",
    "Wanted": "cli run", "choose_machines": "cli run", "idle_machines": "cli run", "find_machine": "cli fetch",
    "JobStart": "cli run", "Project": "cli run", "find_twin": "cli run", "arbiter": "cli run", "comes_first": "cli run",
    "JobFollower": "cli run, logs", "FollowedMachine": "cli logs", "PlainView": "cli", "TerminalView": "cli", "ConsequenceFold": "cli",
    "fetch_results": "cli fetch, run", "JobFolder": "cli up", "find_jobs": "cli", "jobs_directory": "cli",
    "project_store": "cli run", "collect_project": "cli run", "keep_project": "cli run", "environment_needs": "cli run", "needs_in_place": "cli run",
    "size_text": "cli", "ProjectFiles": "cli run", "Ready": "cli run", "terminal_room": "cli", "INTERRUPTED": "cli", "END_S": "cli up", "POLL_S": "cli up", "EVERYTHING": "cli",
    "Changed": "dashboard", "Follow": "dashboard", "Output": "dashboard",
}
