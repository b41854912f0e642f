"""What users and their programs rely on, pinned: changing it is a conscious act."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ringleader
from ringleader import errors
from ringleader.cli.main import SUMMARIES, load_command
from ringleader.errors import PeerError, RingleaderError
from ringleader.testing.threaded_world import world
from ringleader.wire import control_frames, hello

DOCS = Path(__file__).parents[1] / "docs"

PUBLIC = (
    "BackendOptions CallMismatch CollectiveConfig ConfigError DeadlineExceeded "
    "ElasticRun Expelled Group GroupAborted InternalError LayoutMismatch PeerError "
    "PeerFailed PeerLost PeerRefused PeerUnreachable PeerUntrusted ProtocolError "
    "RingleaderError RunError StateLost SyncBatchNorm TooFewMembers Work WorkerNode "
    "__version__ "
    "backends checkpoint compression dataset elastic fetch group join log metrics "
    "parallelize require_backend resume rpc shard should_rejoin sync_module_states "
    "trace"
)

RPC = (
    "Endpoint Future RRef RemoteError register remote rpc_async rpc_sync rref shutdown "
    "start"
)

METRICS = "Distribution Snapshot disable enable reset set_collector snapshot write_page"

COMPRESSION = "Compressor Hook compressor fsdp hook"

GROUP = (
    "abort all_gather all_reduce all_to_all barrier broadcast choice close config "
    "gather links progress rank recv reduce reduce_scatter scatter send sendrecv size "
    "subgroup timeout_s view_id"
)

FLAGS = {
    "init": "--name --force --json",
    "join": "words --phrase-file --pin --at --force --json",
    "invite": "--port --seconds --json",
    "leave": "--yes --json",
    "run": "script args -m --module --nodes --min-nodes --wait --max-nodes --on --not "
    "--here --nproc-per-node --detach --fetch --only-rank --quiet-ranks --no-sync "
    "--sync-env "
    "--max-restarts --survive --partition --job --peers --coordinator --mdns "
    "--interface --port "
    "--tensor-port --transport --rank0 --profile --timeout --any-script --plaintext "
    "--tls-ca --tls-cert --tls-key --compress --checkpoint --trace --dry-run --backend",
    "up": "--jobs --no-jobs --stop --install --uninstall --yes --warm --foreground "
    "--peers --coordinator --mdns --interface --port --profile --wait --json",
    "down": "",
    "jobs": "action --keep --yes --json",
    "fetch": "job path --from --into",
    "logs": "job --rank --follow -f",
    "attach": "job",
    "stop": "job --now",
    "coordinator": "--listen --heartbeat-timeout --state --tls-ca --tls-cert --tls-key "
    "--plaintext",
    "status": "--watch --json --mlx",
    "dashboard": "--no-browser --share --port --json",
    "top": "--once",
    "metrics": "--port --host",
    "backends": "--json",
    "doctor": "--peer --interface --port --tensor-port --seconds --verbose --json",
    "checkpoint": "action folder --step --to --ranks --hugging-face --config --keep "
    "--json",
    "serve": "task --workers --rounds --pin --pin-file --host --port --url --http "
    "--tls-cert --tls-key --open --out --mode --steps --staleness --quorum --grace "
    "--round-timeout --elastic "
    "--scale-rate --no-scale-rate --warmup --aggregate --clip --max-move --outer "
    "--batch-size --seed --codec --weights-codec --checkpoint-every",
    "work": "link --pin --pin-file --server --server-file --task --name --device "
    "--threads --codec --weights-codec --max-batch-size --max-data --minutes "
    "--updates --cluster --json",
    "evaluate": "task --weights --version --export --picture --samples --device --json",
    "bench": "--ranks --sizes --operations --transport --peers --rounds --algorithms "
    "--lan --rate --quick --no-quick --out --json",
    "demo": "--ranks --epochs --chaos --json",
    "simulate": "--nodes --bytes --latency --bandwidth --operation --algorithms "
    "--slow-link --islands --island-bandwidth --island-latency --reduce-speed --arity "
    "--profile --step-s --copy-speed --json",
    "completion": "shell",
}

# error -> its bases, and so what an existing except clause catches.
TREE = {
    "RingleaderError": "RuntimeError",
    "ConfigError": "RingleaderError ValueError",
    "InternalError": "RingleaderError",
    "GroupAborted": "RingleaderError",
    "RunError": "RingleaderError",
    "LayoutMismatch": "RunError",
    "TooFewMembers": "RunError",
    "StateLost": "RunError",
    "Expelled": "RunError",
    "PeerError": "RingleaderError",
    "PeerUnreachable": "PeerError",
    "PeerLost": "PeerError",
    "PeerUntrusted": "PeerError",
    "PeerRefused": "PeerError",
    "PeerFailed": "PeerError",
    "ProtocolError": "PeerError",
    "CallMismatch": "PeerError",
    "DeadlineExceeded": "PeerError TimeoutError",
}

ERRORS = [
    each
    for each in vars(errors).values()
    if inspect.isclass(each) and issubclass(each, RingleaderError)
]


def examples() -> list[RingleaderError]:
    """Every error, with a rank and with an address where it has a peer."""
    made: list[RingleaderError] = []
    for kind in ERRORS:
        if issubclass(kind, PeerError):
            made += [kind(3, "text"), kind("10.0.0.7:4711", "more text")]
        else:
            made.append(kind("text"))
    return made


def test_the_public_names_are_pinned() -> None:
    assert ringleader.__all__ == PUBLIC.split()
    for name in PUBLIC.split():
        assert getattr(ringleader, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'grop'"):
        _ = ringleader.grop


def test_dir_shows_the_public_names_only() -> None:
    """Also after every public name was loaded, and submodules with them."""
    for name in PUBLIC.split():
        getattr(ringleader, name)
    assert hasattr(ringleader, "backend"), "a submodule was imported"
    assert dir(ringleader) == sorted(PUBLIC.split())
    assert dir(ringleader.compression) == sorted(COMPRESSION.split())


def test_what_compression_offers_is_pinned() -> None:
    assert ringleader.compression.__all__ == COMPRESSION.split()
    for name in COMPRESSION.split():
        assert getattr(ringleader.compression, name) is not None


def test_what_metrics_offer_is_pinned() -> None:
    assert ringleader.metrics.__all__ == METRICS.split()
    for name in METRICS.split():
        assert getattr(ringleader.metrics, name) is not None


def test_what_rpc_offers_is_pinned() -> None:
    assert ringleader.rpc.__all__ == RPC.split()
    for name in RPC.split():
        assert getattr(ringleader.rpc, name) is not None


def test_everything_a_group_offers_is_pinned() -> None:
    with world(1) as (group,):
        names = [name for name in dir(group) if not name.startswith("_")]
    assert names == GROUP.split()


def test_the_version_is_that_of_the_package() -> None:
    project = Path(__file__).parents[1] / "pyproject.toml"
    assert f'version = "{ringleader.__version__}"' in project.read_text()


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, ringleader, ringleader.cli.main; print('torch' in sys.modules)"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False", "ringleader --help must answer at once"


def test_the_commands_and_their_flags_are_pinned() -> None:
    commands = {name: load_command(name) for name in SUMMARIES}
    flags = {
        name: [o for p in each.params for o in (*p.opts, *p.secondary_opts)]
        for name, each in commands.items()
    }
    assert flags == {name: text.split() for name, text in FLAGS.items()}


def test_the_tree_of_errors_is_pinned() -> None:
    tree = {
        each.__name__: [base.__name__ for base in each.__bases__] for each in ERRORS
    }
    assert tree == {name: bases.split() for name, bases in TREE.items()}
    assert {*tree} <= {*ringleader.__all__}, "every error is public"


def test_every_error_is_in_the_tree_that_the_module_prints() -> None:
    printed = re.findall(r"\w+", str(errors.__doc__))
    for kind in ERRORS:
        assert kind.__name__ in printed, (
            f"{kind.__name__} is missing in errors.py's tree"
        )


@pytest.mark.parametrize("error", examples(), ids=repr)
def test_an_error_survives_pickling_and_copying(error: RingleaderError) -> None:
    for twin in (
        *(pickle.loads(pickle.dumps(error, p)) for p in range(6)),
        copy.copy(error),
        copy.deepcopy(error),
    ):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert twin.args == error.args
        assert vars(twin) == vars(error)


@pytest.mark.parametrize("error", examples(), ids=repr)
def test_an_error_names_its_peer(error: RingleaderError) -> None:
    assert error.text in str(error)
    if isinstance(error, PeerError):
        who = f"rank {error.peer}" if isinstance(error.peer, int) else error.peer
        assert str(error) == f"{who}: {error.text}"
    else:
        assert str(error) == error.text


def test_every_error_is_documented() -> None:
    text = (DOCS / "errors.md").read_text()
    for kind in ERRORS:
        assert f"`{kind.__name__}`" in text, f"docs/errors.md lacks {kind.__name__}"


def test_every_word_of_the_wire_is_documented() -> None:
    text = (DOCS / "wire-format.md").read_text()
    words = [*hello.Purpose, *hello.Status, *control_frames.Kind]
    for word in words:
        row = f"| {word.value} | `{word.name}` |"
        assert row in text, f"docs/wire-format.md lacks {row}"
    for code, blame in enumerate(control_frames.ERROR_NAMES):
        assert f"| {code} | `{blame}` |" in text, f"docs/wire-format.md lacks {blame}"
    for kind, limit in control_frames.LIMITS.items():
        row = f"| {kind.value} | `{kind.name}` | {limit} |"
        assert row in text, f"docs/wire-format.md lacks the limit of {kind.name}"
