#!/bin/bash
# check.sh: after move.py --write, inside a worktree: tidy, then the cheap checks
.venv/bin/ruff check --fix -q . >/dev/null; .venv/bin/ruff format -q .; .venv/bin/ruff check --fix -q . | head -${1:-60}
.venv/bin/python - <<'P'
import pkgutil, importlib, sys, ringleader, traceback
bad=0
for m in pkgutil.walk_packages(ringleader.__path__, 'ringleader.'):
    if '__main__' in m.name or '_pb2' in m.name or m.name.endswith('worker_main'): continue
    try: importlib.import_module(m.name)
    except BaseException as e:
        bad+=1; print('IMPORT', m.name, type(e).__name__, e)
print('imports bad:', bad)
P
