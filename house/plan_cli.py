"""The command line. By hand after it: `load_command` in cli/main.py takes a command's module from a table (HAND below).

A command is a function of its name in the module of its name, or of its family:
  cluster_commands  init, join, invite, leave        job_commands  logs, fetch, attach, stop
  up_command        up, down                         (run.py, top.py, ... : one file each)
"""

DOCS = {
    "cli.cluster_commands": "``ringleader init``, ``join``, ``invite``, ``leave``: this machine's cluster.",
    "cli.job_commands": "``ringleader logs``, ``fetch``, ``attach``, ``stop``: one job, from any machine.",
    "cli.up_command": "``ringleader up`` and ``down``: the agent of this machine in the background.",
    "cli.terminal": "What commands share: prompts, errors as exit codes, signals, extras, certificates.",
    "cli.run_here": "``ringleader run`` on this machine: checks the options, starts agent and workers.",
    "cli.run_options": "Options of ``ringleader run``, their checks, and which of them travel.",
    "cli.worker_pool": "WorkerPool: the worker processes of a command, which talk to it in lines of JSON.",
    "cli.serve_command": "``ringleader serve``: run a parameter server for workers on the internet.",
    "cli.bench.bench_plan": "What a benchmark measures, how often, and its measurements. Pure.",
    "cli.bench.bench_run": "Runs a benchmark in its processes, in turns, and saves it with what repeats it.",
    "cli.bench.bench_rank": "BenchRank verifies and times the calls of collective libraries on one rank.",
    "cli.demo.chaos": "``ringleader demo --chaos``: kills nodes of a run, which must not be noticed.",
    "cli.demo.demo_machine": "The machines of the demo: private homes, and processes with one import of torch.",
}
MOVES = {
    "cli.main": ["cli.main"],
    "cli.welcome": ["cli.welcome"],
    "cli.completion": ["cli.completion"],
    # what commands share
    "cli.terminal": ["cli.terminal", "cli.interrupt", "cli.extras", "cli.own_address", "cli.tls_options"],
    "cli.units": ["cli.units"],
    "cli.worker_pool": ["cli.worker_pool", "cli.json_socket"],
    # the cluster and this machine
    "cli.cluster_commands": ["cli.init", "cli.join", "cli.invite", "cli.leave"],
    "cli.up_command": ["cli.up", "cli.down", "cli.up_report", "cli.up_install", "cli.user_service"],
    "cli.jobs_of_others": ["cli.jobs_of_others"],
    "cli.status_command": ["cli.status"],
    "cli.top": ["cli.top"],
    "cli.doctor_command": ["cli.doctor"],
    "cli.dashboard_command": ["cli.dashboard"],
    "cli.metrics_command": ["cli.metrics"],
    "cli.backends": ["cli.backends"],
    "cli.coordinator_command": ["cli.coordinator", "cli.refused_handshakes"],
    # run and jobs
    "cli.run": ["cli.run"],
    "cli.run_options": ["cli.run_options", "cli.travel"],
    "cli.run_here": ["cli.run_command", "cli.run_job", "cli.run_choice"],
    "cli.run_cluster": ["cli.run_cluster"],
    "cli.worker_output": ["cli.worker_output"],
    "cli.shown_job": ["cli.job_output"],
    "cli.jobs_command": ["cli.jobs"],
    "cli.job_commands": ["cli.attach", "cli.logs", "cli.stop", "cli.fetch"],
    "cli.checkpoint_command": ["cli.checkpoint"],
    # the internet
    "cli.serve_command": ["cli.serve", "cli.serve_announcement", "cli.serve_progress"],
    "cli.work_command": ["cli.work"],
    "cli.work_progress": ["cli.work_progress"],
    "cli.evaluate": ["cli.evaluate"],
    # measure, predict, show
    "cli.simulate": ["cli.simulate", "cli.scale_table"],
    "cli.bench": ["cli.bench"],
    "cli.bench.bench_plan": ["cli.bench.bench_plan", "cli.bench.measurement"],
    "cli.bench.bench_run": ["cli.bench.bench_run", "cli.bench.bench_session", "cli.bench.report", "cli.bench.system_info"],
    "cli.bench.bench_table": ["cli.bench.table"],
    "cli.bench.bench_plot": ["cli.bench.plot"],
    "cli.bench.bench_rank": ["cli.bench.bench_rank", "cli.bench.check_pattern"],
    "cli.bench.torch_worker": ["cli.bench.torch_worker", "cli.bench.gloo_library", "cli.bench.ringleader_library"],
    "cli.bench.mpi_worker": ["cli.bench.mpi_worker"],
    "cli.demo": ["cli.demo"],
    "cli.demo.chaos": ["cli.demo.chaos_view", "cli.demo.chaos", "cli.demo.loss_curve"],
    "cli.demo.chaos_worker": ["cli.demo.chaos_worker"],
    "cli.demo.demo_machine": ["cli.demo.demo_machine", "cli.demo.warm_python"],
    "cli.demo.demo_training": ["cli.demo.training"],
    "cli.demo.demo_worker": ["cli.demo.worker"],
}
RENAMES = {
    "cli.demo.loss_curve.draw": "draw_losses",
    "cli.bench.report.document": "result_document",
    "cli.bench.report.save": "save_result",
    "cli.bench.report.text": "result_text",
    "cli.bench.report.HOW": "HOW_MEASURED",
    "cli.bench.bench_run.run": "run_bench",
    "cli.bench.check_pattern.write": "write_pattern",
    "cli.bench.table.draw": "draw_table",
    "cli.bench.system_info.describe": "describe_system",
    "cli.run_options.MOST": "MAX_NODES",
    "cli.scale_table.parse": "parse_scale",
    "cli.scale_table.show": "show_scale",
    "cli.scale_table.rows": "scale_rows",
    "cli.scale_table.table": "scale_lines",
    "cli.scale_table._plain": "_plain_wire",
    "cli.up_report.describe": "describe_agent",
    "cli.json_socket.listen": "listen_for_workers",
    "cli.json_socket.connect": "connect_to_command",
    "cli.json_socket.serve": "serve_command_requests",
    "cli.serve_announcement.announce": "announce_server",
}
KEEP = set()
FACE = {}

HAND = """cli/main.py, load_command:
_MODULES = {
    **dict.fromkeys(("init", "join", "invite", "leave"), "cluster_commands"),
    **dict.fromkeys(("logs", "fetch", "attach", "stop"), "job_commands"),
    **dict.fromkeys(("up", "down"), "up_command"),
    **{name: f"{name}_command" for name in ("status", "doctor", "dashboard", "metrics",
       "coordinator", "jobs", "checkpoint", "serve", "work")},
}
    module = import_module(f"ringleader.cli.{_MODULES.get(name, name)}")
    function = getattr(module, name)
tests/integration/identity/test_pairing.py: `from ringleader.cli import cluster_commands`, and
    monkeypatch.setattr(cluster_commands, "_SEARCH_S", 0.2)
"""
