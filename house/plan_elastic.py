"""The elastic run: training, rounds, membership/steps.

The folder keeps the name `training`: `ringleader.elastic` is a public FUNCTION, and a folder
`ringleader/elastic` would take its place as soon as something imports a module of it
(`import ringleader.elastic.x` binds the package to the name). The same holds for `group`.
"""

P = "training"

DOCS = {
    f"{P}.elastic": "``ringleader.elastic``: a training loop that survives the loss of machines.",
    f"{P}.elastic_options": "Options of an elastic run, and its methods with little communication by name.",
    f"{P}.views": "Views of the run as the user's thread sees them: waited for, installed, left.\n\n``ViewSession`` takes the views of the control thread, ``next_view`` waits for one in\nwhich the run can go on, ``InstalledView`` is the one in force with its group.",
    f"{P}.survivors": "Survivors: an unmodified script of torch goes on when machines are lost.",
    f"{P}.machine_events": "What happens to a machine beside its network: SIGTERM, battery, sleep, hanging code.",
    f"{P}.gradient_reduction": "The sum of all members' gradients: buckets in order, then the sideband.",
    f"{P}.low_communication": "Rounds of local steps with one exchange each: DiLoCo, SparseLoCo.",
    f"{P}.training_rounds": "Training in rounds: many local steps, then one exchange of differences. Pure.",
    f"{P}.live_source": "The members' side of a live join: LiveSource serves the state while it trains.",
    f"{P}.live_learner": "The newcomer's side of a live join: it follows the run before it is a member.",
    f"{P}.run_news": "RunNews: tells the person at a machine who trains, and how well the work is divided.",
    f"{P}.data.sample_assignment": "Who gets which samples: shares by measured speed, assigned anew after a loss.",
    f"{P}.data.data_position": "Which samples or shards a step takes, and how the position advances.",
    f"{P}.data.batch_loaders": "Loaders: the batches of this member's quanta, from a dataset or from shards.",
    f"{P}.state.state_tensors": "The tensors of a state by name: their manifest, their pieces and their digests.",
    f"{P}.steps.step_status": "StepStatus: what a frozen member reports, and the names of its history.",
    f"{P}.steps.step_plan": "",
}
DOCS = {k: v for k, v in DOCS.items() if v}

_MOVES = {
    # the loop
    "elastic": ["training.elastic", "training.run", "training.quantum_seed"],
    "elastic_options": ["training.options", "training.low_comm.method"],
    "team": ["training.team"],
    "members": ["training.members", "training.step_attempts", "training.plan_execution"],
    "machine_events": ["training.machine_events", "training.control.termination", "training.control.battery",
                       "training.control.work_watch", "training.control.sleep_clock"],
    "run_news": ["training.run_news", "training.data.efficiency"],
    "kill_points": ["training.kill_points"],
    # who is a member
    "run_connection": ["training.connect", "training.control.run_environment", "training.own_endpoint"],
    "run_membership": ["training.control.run_membership", "training.control.control_loop",
                       "training.control.run_config", "training.control.view_hooks"],
    "views": ["training.view_session", "training.installed_view", "training.next_view", "training.member_data"],
    "survivors": ["training.survivors", "training.script_run", "training.collective_attempt", "training.result_memory"],
    # what a step computes
    "contribution": ["training.contribution", "training.local_step"],
    "gradient_reduction": ["training.reduction", "training.bucket_reducer", "training.flat_buffers",
                           "training.bucket_plan", "training.residuals", "training.low_comm.sparse_sum"],
    "sideband": ["training.sideband"],
    "model_update": ["training.model_update", "training.gradient_norm", "training.norm_buffers"],
    "low_communication": ["training.round_contribution", "training.round_update", "training.low_comm.outer_state"],
    "training_rounds": ["rounds.round_length", "rounds.outer_step", "rounds.round_mean"],
    # live join
    "live_source": ["training.join.live_source", "training.join.learner", "training.join.step_messages",
                    "training.join.upload_pace"],
    "live_learner": ["training.following", "training.join.live_learner", "training.join.dial_sources"],
    # the data side of the replicated state
    "data.sample_assignment": ["training.data.assignment", "training.data.balance"],
    "data.data_position": ["training.data.data_state", "training.data.stream_state", "training.data.intervals"],
    "data.delivery_ledger": ["training.data.ledger", "training.data.ledger_runs"],
    "data.data_progress": ["training.data.progress", "training.data_order"],
    "data.batch_loaders": ["training.data.data_source", "training.data.loader", "training.data.quantum_loader",
                           "training.data.stream_loader", "training.data.seeded_dataset"],
    # the replicated state itself
    "state.replicated_state": ["training.state.replicated_state", "training.state.model_part",
                               "training.state.optimizer_part", "training.state.value_tree", "training.state.fingerprint"],
    "state.state_tensors": ["training.state.manifest", "training.state.pieces", "training.state.digests"],
    "state.state_transfer": ["training.state.transfer", "training.state.transfer_messages",
                             "training.state.piece_exchange", "training.state.verdict", "training.state.second_copy"],
    "state.state_agreement": ["training.state.state_agreement", "training.state.state_watch", "training.state.scrub"],
    "state.run_checkpoints": ["training.state.run_checkpoints"],
    # the step protocol, pure
    "steps.step_member": ["membership.steps.step_member", "membership.steps.promises"],
    "steps.step_plan": ["membership.steps.decide", "membership.steps.plan", "membership.steps.lineage"],
    "steps.step_status": ["membership.steps.attempt", "membership.steps.status"],  # first what its decoder needs
}
MOVES = {f"{P}.{new}": olds for new, olds in _MOVES.items()}
RENAMES = {
    "training.low_comm.method.parse": "parse_low_comm",
    "training.sideband.Entry": "SidebandEntry",
    "training.state.manifest.Entry": "TensorEntry",
    "training.state.manifest.difference": "tensor_difference",
    "training.state.manifest._differences": "_tensor_differences",
    "training.data.ledger_runs.Entry": "LedgerEntry",
    "training.data.ledger_runs.Run": "LedgerRun",
    "training.data.ledger.record": "record_delivery",
    "training.data.intervals.split": "split_intervals",
    "training.data.intervals.union": "union_intervals",
    "training.data.stream_state.Read": "ShardRead",
    "training.data.stream_state.Slot": "ShardSlot",
    "training.data.balance.Report": "WorkReport",
    "training.data.balance.Flag": "WorkFlag",
    "training.data.balance.observe": "observe_work",
    "training.data.progress.Progress": "DataProgress",
    "training.reduction.Reduction": "GradientReduction",
    "training.reduction.Reducer": "StepReducer",
    "training.options.Options": "ElasticOptions",
    "training.join.learner.Step": "LearnerStep",
    "training.run_news.tell": "tell_user",
    "training.quantum_seed.quantum_seed": "quantum_seed",
    "training.state.pieces.cut": "cut_pieces",
    "training.state.pieces.Span": "TensorSpan",
    "training.state.model_part.extra_states": "model_extra_states",
    "training.state.model_part.load_extra_states": "load_model_extra_states",
    "training.state.optimizer_part.flags": "optimizer_flags",
    "training.state.second_copy.fits": "second_copy_fits",
    "training.state.second_copy.warning": "second_copy_warning",
    "training.state.scrub.scrub": "scrub_slice",
    "training.state.scrub.EVERY": "SCRUB_EVERY",
    "training.state.state_watch.EVERY": "WATCH_EVERY",
    "training.state.state_watch.SLICES": "WATCH_SLICES",
    "training.state.scrub.SLICES": "SCRUB_SLICES",
    "training.state.value_tree.split": "split_tensors",
    "training.state.value_tree.join": "join_tensors",
    "training.state.transfer_messages.Offer": "StateOffer",
    "training.state.transfer_messages.Answer": "StateAnswer",
    "training.state.transfer_messages.Roles": "TransferRoles",
    "training.state.transfer_messages.decode_all": "decode_state_messages",
    "membership.steps.status.Ended": "EndedRun",
}
# patched by benchmarks (elastic_balance, low_communication_bytes) as `module.name = ...`
KEEP = {"training.data.progress", "training.installed_view"}

FACE = {
    # for `import ringleader`
    "elastic": "the public function", "ElasticRun": "the public class",
    # for launch, by name (`torch_entry_points`: it must not import it before a script wants it)
    "join_run": "launch.torch_entry_points: an unmodified script becomes a member",
    # for internet: length and weight of rounds
    "WorkerTimes": "internet's scheduler", "mean_steps": "internet", "split_by_speed": "internet", "late_weight": "internet",
    "MAX_AGE": "internet", "OuterStep": "options of both", "RoundMean": "internet",
    # the step protocol, for tests/simulators
    "Attempt": "simulators", "StepMember": "simulators", "StepPlan": "simulators", "StepStatus": "simulators", "decide": "simulators",
    # the control plane alone, for tests/kit's run_member
    "RunConfig": "tests/kit", "RunMembership": "tests/kit",
}
