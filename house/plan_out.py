"""What goes out of the wheel (testing -> tests/kit, simulation -> tests/simulators), and what of both stays.

Run with move_pd.py (new modules "tests.x", THROUGH, GONE). Stays in the wheel:
  collectives.simulator, event_replay, network_model   `ringleader simulate`: programs replayed in virtual time
  cli.virtual_lan                                       `ringleader bench --lan`, and the documented `ringleader.testing.lan`
  testing.py                                            `ringleader.testing.run_world`, `world`, `lan`: documented for users
"""

DOCS = {
    "collectives.simulator": "Predicts how long a collective takes on N nodes, by replaying it in virtual time.",
    "collectives.network_model": "Networks to predict for: described link by link, or by a profile that people have.",
    "testing": "Test kit for your own tests: groups in threads of one process, virtual LANs.",
    "cli.virtual_lan": "Virtual LANs on one machine: network namespaces as hosts, a bridge as the switch.\n\n    with lan(hosts=4, rate=\"1gbit\") as net:\n        server = net.hosts[0].popen([sys.executable, \"serve.py\", net.hosts[0].address])\n        net.cut(0)\n\nEach host is a namespace with one interface, ``eth0``. Its cable is a veth pair whose\nother end is a port of a bridge, and the bridge has a namespace of its own: nothing is\nadded to the machine's own network, so addresses cannot collide with it, two LANs do not\nsee each other, and deleting the namespaces deletes everything. Common network faults\ncan be injected: cut, one-way and slow cables, partitions, firewalls, missing multicast,\na wrong MTU, VPN interfaces. A LAN needs Linux, root and iproute2; ``can_make_lan`` and\n``can_make_faults`` tell whether this process can make one, and if not, why.",
    "tests.simulators": "Simulators: membership and the step protocol with seeded faults; long cables.",
    "tests.simulators.membership.simulated_network": "SimulatedCluster and the network below it, on a virtual clock.",
    "tests.kit.link_contract": "",
}
DOCS = {k: v for k, v in DOCS.items() if v}

_SIM, _S = "tests.simulators", "simulation"
MOVES = {
    # stays in the wheel
    "collectives.simulator": ["simulation.collectives.simulator", "simulation.collectives.ring_recurrence"],
    "collectives.event_replay": ["simulation.collectives.event_replay", "simulation.collectives.replay_state",
                                 "simulation.collectives.program_shape"],
    "collectives.network_model": ["simulation.collectives.network_model", "simulation.collectives.wire_profile"],
    "cli.virtual_lan": ["simulation.lan.virtual_lan", "simulation.lan.virtual_host", "simulation.lan.switch",
                        "simulation.lan.rate_limit", "simulation.lan.ip_command"],
    "testing": ["testing", "testing.threaded_world"],
    # simulators
    _SIM: ["simulation"],
    f"{_SIM}.long_cable": ["simulation.lan.long_cable"],
    f"{_SIM}.cable_carrier": ["simulation.lan.cable_carrier"],
    f"{_SIM}.seed_runs": ["simulation.seed_runs"],
    f"{_SIM}.membership": ["simulation.membership"],
    f"{_SIM}.membership.__main__": ["simulation.membership.__main__"],
    f"{_SIM}.membership.seeded_run": ["simulation.membership.seeded_run", "simulation.membership.fault_plan"],
    f"{_SIM}.membership.simulated_network": ["simulation.membership.simulated_cluster", "simulation.membership.simulated_network",
                                             "simulation.membership.link_conditions", "simulation.membership.virtual_clock"],
    f"{_SIM}.membership.simulated_node": ["simulation.membership.simulated_node", "simulation.membership.trace_text"],
    f"{_SIM}.membership.invariants": ["simulation.membership.invariants"],
    f"{_SIM}.steps": ["simulation.steps"],
    f"{_SIM}.steps.__main__": ["simulation.steps.__main__"],
    **{f"{_SIM}.steps.{n}": [f"simulation.steps.{n}"] for n in (
        "adversary", "data_side", "engine", "node", "oracle", "planted_bugs", "rules", "seed_job", "toy_model", "world")},
    f"{_SIM}.steps.membership_run": ["simulation.steps.membership_run", "simulation.steps.member_machine"],
    f"{_SIM}.steps.seeded_run": ["simulation.steps.seeded_run", "simulation.steps.step_result"],
    # the test kit
    "tests.kit.full_disk": ["testing.full_disk"],
    "tests.kit.link_contract": ["testing.link_contract", "testing.link_driver"],
    "tests.kit.node_process": ["testing.node_process"],
    "tests.kit.processes": ["testing.processes"],
    "tests.kit.run_member": ["testing.run_member"],
}
OUT = {
    "testing": "src/ringleader/testing.py",
    _SIM: "tests/simulators/__init__.py",
    f"{_SIM}.membership": "tests/simulators/membership/__init__.py",
    f"{_SIM}.steps": "tests/simulators/steps/__init__.py",
}
THROUGH = ["simulation.lan"]
GONE = ["simulation.lan", "simulation.collectives"]
WORDS = {"simulation.lan": "cli.virtual_lan", "simulation.collectives": "collectives"}
RENAMES = {
    "simulation.collectives.simulator.predict": "predict_collective",
    "simulation.collectives.simulator.simulate": "simulate_collective",
    "simulation.collectives.network_model.islands": "island_network",
    "simulation.lan.ip_command.run": "run_tool",
}
KEEP = set()
FACE = {}
