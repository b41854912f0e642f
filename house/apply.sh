#!/bin/bash
# apply.sh: in a checkout of main: the whole move, subsystem by subsystem (staged, not committed).
set -e
here=$(dirname "$(readlink -f "$0")")
python3 - <<'P'
import re
p='pyproject.toml'; s=open(p).read()
s=re.sub(r'extend-exclude = \[.*?\]', 'extend-exclude = ["**/v1/*_pb2*", "house"]', s)
s=s.replace('module = ["ringleader.coordinator.v1.*", "ringleader.transport.star.v1.*"]','module = ["ringleader.cluster.coordinator.v1.*", "ringleader.net.star.v1.*"]')
s=s.replace('"src/ringleader/backend/*" = ','"src/ringleader/torch_backend/*" = ')
open(p,'w').write(s)
P
git add -A
for p in ${*:-top net collectives metrics group trust cluster launch elastic jobs dashboard internet out cli torch_backend compression data checkpoint parallel rpc}; do
  echo "== $p"
  python3 "$here/house_move.py" "$here/plan_$p.py" --root . --write 2>&1 | grep -v "RENAME\|^ORDER\|UNMAPPED\|^DOCS" || true
  git add -A
done
mkdir -p src/ringleader/internet/tasks src/ringleader/internet/server
for f in src/ringleader/paramserver/tasks/digits.npz; do [ -f $f ] && git mv $f src/ringleader/internet/tasks/; done
for f in src/ringleader/paramserver/server/http/server_page.*; do [ -f "$f" ] && git mv $f src/ringleader/internet/server/; done
find src -name __pycache__ -prune -exec rm -rf {} +
find src -type d -empty -delete
[ -f "$here/mend.py" ] && python3 "$here/mend.py"
.venv/bin/ruff check --fix -q . >/dev/null || true
.venv/bin/ruff format -q .
.venv/bin/ruff check --fix --output-format concise . || true
git add -A
