"""The files and the Python environment that a job needs on each machine.

On the machine where a job is started::

    project = collect(Path("train.py"))         # lists and hashes; refuses too much
    keep(project, store)                        # snapshot in the user's store
    needs = environment_needs(project)          # what its imports need

On each machine of the job, after the chunks that ``missing`` names have arrived::

    differences = compare_environment(needs, local_facts(needs))
    unpack(manifest, store, folder)             # completely or not at all
    python = make_environment(folder, script, home, deadline)   # --sync-env
    facts_of(python, needs, deadline)

All of these block; an event loop calls them in a thread.
"""

from ringleader.project.blob_store import BlobStore
from ringleader.project.environment import (
    EnvironmentFacts,
    EnvironmentNeeds,
    environment_needs,
    local_facts,
    needs_in_place,
)
from ringleader.project.environment_check import (
    Difference,
    compare_environment,
    difference_table,
    refuses,
)
from ringleader.project.made_environment import facts_of, make_environment
from ringleader.project.manifest import Manifest
from ringleader.project.project_files import (
    ProjectFiles,
    collect,
    drop_unchanged,
    find_written,
    keep,
    missing,
    unpack,
)

__all__ = [
    "BlobStore",
    "Difference",
    "EnvironmentFacts",
    "EnvironmentNeeds",
    "Manifest",
    "ProjectFiles",
    "collect",
    "compare_environment",
    "difference_table",
    "drop_unchanged",
    "environment_needs",
    "facts_of",
    "find_written",
    "keep",
    "local_facts",
    "make_environment",
    "missing",
    "needs_in_place",
    "refuses",
    "unpack",
]
