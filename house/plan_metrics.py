MOVES = {
    "metrics": ["metrics"],
    "metrics.metric_catalog": ["metrics.catalog"],
    "metrics.registry": ["metrics.registry", "metrics.snapshot"],
    "metrics.process_metrics": [
        "metrics.publisher",
        "metrics.worker_files",
        "metrics.process_values",
        "metrics.process_metrics",  # last: ``current`` is made on loading
    ],
    "metrics.exposition": ["metrics.exposition"],
    "metrics.exposition_server": ["metrics.page_server"],
    "metrics.trace_events": [
        "tracing.analysis.events",
        "tracing.recorder",
        "tracing.collector",
        "tracing.batch",
        "tracing.analysis.clock",
    ],
    "metrics.step_parts": ["tracing.analysis.summary", "tracing.analysis.parts", "tracing.analysis.causes"],
    "metrics.trace_report": [
        "tracing.analysis.table",
        "tracing.analysis.advice",
        "tracing.trace_file",
        "tracing.analysis.chrome_trace",
    ],
    # What records a group's calls knows groups, which count by ringleader.metrics: it lies above them.
    "groups.trace": ["tracing.trace", "tracing.run_trace", "tracing.group_recorder", "tracing.program_recorder"],
    "groups.trace_courier": ["tracing.courier", "tracing.store_channel", "tracing.meeting_store"],
}
DOCS = {
    "metrics.process_metrics": """The metrics of this process: on or off, snapshot, reset, collector, files.

A ``Publisher`` hands snapshots to a file, which the machine's agent reads, and to the
user's collector.""",
    "groups": "A group of ranks and what it can do.",
    "metrics.trace_events": """The events that a rank records, and how those of all ranks become one recording.

``Recorder`` keeps the last events of this rank, ``Batch`` is some of them as bytes, and
``Collector`` puts the batches of all ranks together, on one clock.""",
    "metrics.step_parts": "The parts of a training step: compute, wire, waiting for a rank or a link.",
    "metrics.trace_report": "A recording for people: a table, a sentence of advice, a file for Perfetto.",
}
RENAMES = {
    "metrics.catalog.Kind": "MetricKind",
    "tracing.batch.MAX_OFFSETS": "MAX_BATCH_OFFSETS",
    "tracing.batch._event": "_event_of_row",
    "tracing.analysis.clock.Answer": "ClockAnswer",
    "tracing.analysis.clock.Offset": "ClockOffset",
    "tracing.analysis.clock.estimate": "estimate_offset",
}
FACE = {
    "snapshot": "users", "enable": "users", "disable": "users", "reset": "users", "set_collector": "users", "Snapshot": "users, dashboard", "Distribution": "users",
    "write_page": "cli, internet", "Registry": "group, cluster, internet", "Tally": "group", "ProcessValues": "cluster", "read_files": "cluster, dashboard",
    "PageServer": "cli", "Recorder": "group.trace", "Recording": "group.trace", "Batch": "group.trace", "Collector": "group.trace", "summarize": "group.trace",
    "format_table": "group.trace", "write_trace": "group.trace",
}
