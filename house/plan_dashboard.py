"""The dashboard, what the agent collects for it, and the doctor.

`ringleader.dashboard.callbacks` is documented for users: it keeps its name.
"""

DOCS = {
    "dashboard.dashboard_server": "``DashboardServer``: the page of the dashboard by HTTP, for those who may see it.",
    "dashboard.logged_numbers": "``ringleader.log``: numbers of a step, written by workers, read by agents.",
    "dashboard.page_state": "``page_state``: what the page shows of machines, links and jobs. Pure.",
    "dashboard.cluster_monitor": "``ClusterMonitor``: the state of the page, kept current while somebody looks.",
    "dashboard.machine_feed": "The service ``machine``: load of this machine, numbers and traffic of its workers.",
    "dashboard.open_dashboard": "``open_dashboard`` and ``PageReader``: what commands ask the local agent.",
    "dashboard.doctor.diagnosis": "``diagnose``: derives findings from facts, by a rule for each trouble. Pure.",
    "dashboard.doctor.firewall": "Which firewall a machine has, and the command that lets ports through it.",
    "dashboard.doctor.examine": "``examine``: gathers the facts about this machine, its network and its peers.",
    "dashboard.doctor.node_search": "``NodeSearch``: finds all nodes that can be found, dials them, measures links.",
    "dashboard.doctor.probe_address": "Dials an address as agents do, measures the link, and says how far it gets.",
}

MOVES = {
    "dashboard.callbacks": ["dashboard.callbacks"],
    "dashboard.logged_numbers": ["dashboard.log", "dashboard.number_files", "monitoring.number_folders"],
    "dashboard.page_state": ["dashboard.page_state", "dashboard.job_rows", "dashboard.curve"],
    "dashboard.dashboard_server": ["dashboard.server", "dashboard.access", "dashboard.client_source",
                                   "dashboard.changes"],
    "dashboard.page_http": ["dashboard.http_message", "dashboard.assets"],
    "dashboard.open_dashboard": ["monitoring.open_dashboard", "monitoring.messages"],
    "dashboard.install_dashboard": ["monitoring.install_services"],
    "dashboard.dashboard_service": ["monitoring.dashboard_service", "monitoring.shared_page"],
    "dashboard.cluster_monitor": ["monitoring.cluster_monitor", "monitoring.job_watch"],
    "dashboard.machine_feed": ["monitoring.machine_feed", "monitoring.worker_traffic"],
    # the doctor
    "dashboard.doctor.examine": ["doctor.examine", "doctor.local_machine"],
    "dashboard.doctor.node_search": ["doctor.node_search", "doctor.candidates"],
    "dashboard.doctor.probe_address": ["doctor.probe_address", "doctor.link_measurement"],
    "dashboard.doctor.firewall": ["doctor.local_firewall", "doctor.firewall_command"],
    "dashboard.doctor.doctor_facts": ["doctor.facts"],
    "dashboard.doctor.diagnosis": ["doctor.finding", "doctor.rules.reachability", "doctor.rules.secrets",
                                   "doctor.rules.versions", "doctor.rules.multicast", "doctor.rules.absent_nodes",
                                   "doctor.rules.coordinators", "doctor.rules.cloned_keys", "doctor.rules.clocks",
                                   "doctor.rules.subnets", "doctor.rules.link_speed", "doctor.rules.machine",
                                   "doctor.diagnose"],
    "dashboard.doctor.doctor_report": ["doctor.report"],
}
RENAMES = {
    "doctor.rules.clocks.clocks": "find_wrong_clocks",
    "doctor.rules.cloned_keys.cloned_keys": "find_cloned_keys",
    "doctor.rules.coordinators.coordinators": "find_unreached_coordinators",
    "doctor.rules.machine.machine": "find_machine_trouble",
    "doctor.rules.multicast.multicast": "find_multicast_trouble",
    "doctor.rules.reachability.reachability": "find_unreachable_nodes",
    "doctor.rules.subnets.subnets": "find_wrong_subnets",
    "doctor.rules.versions.versions": "find_other_versions",
    "doctor.rules.versions.unreadable_announcements": "find_unreadable_announcements",
    "doctor.rules.secrets.wrong_secrets": "find_wrong_secrets",
    "doctor.rules.absent_nodes.lost_nodes": "find_lost_nodes",
    "doctor.rules.absent_nodes.lonely_jobs": "find_lonely_jobs",
    "doctor.rules.link_speed.slow_links": "find_slow_links",
    "doctor.candidates.merge": "merge_candidates",
    "doctor.candidates.is_here": "is_this_machine",
    "doctor.local_machine.descriptors": "count_descriptors",
    "doctor.local_machine.shared_memory": "measure_shared_memory",
    "doctor.local_machine.taken_ports": "find_taken_ports",
    "doctor.link_measurement.CONNECT_S": "MEASURE_CONNECT_S",
    "doctor.rules.link_speed._check": "_check_link",
    "doctor.rules.link_speed._MEND": "_MEND_LINK",
    "doctor.report.checks": "report_checks",
    "doctor.facts.Source": "CandidateSource",
    "doctor.examine.Request": "DoctorRequest",
    "dashboard.http_message.Request": "PageRequest",
    "dashboard.access.Session": "PageSession",
}
KEEP = set()
FACE = {
    "log": "`ringleader.log`", "make_number_folder": "cli run",
    "install": "cluster's agent, by name: adds the services (lazy)",
    "open_dashboard": "cli dashboard", "PageReader": "cli top", "OpenDashboard": "cli dashboard", "DashboardOpened": "cli dashboard",
    "State": "cli top", "find_link": "cli top", "load_assets": "internet's status page", "TYPES": "internet's status page",
    "SECURITY_HEADERS": "internet's status page",
    "examine": "cli doctor", "DoctorRequest": "cli doctor", "diagnose": "cli doctor", "Facts": "cli doctor", "Finding": "cli doctor",
    "Severity": "cli doctor", "Check": "cli doctor", "report_checks": "cli doctor", "conclusion": "cli doctor",
}
