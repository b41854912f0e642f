#!/usr/bin/env python3
"""list.py FOLDER...: every module with lines, first sentence, importers."""
import ast,sys,re
from pathlib import Path
from collections import defaultdict
root=Path.cwd()/'src/ringleader'
mods={}
for p in root.rglob('*.py'):
    n='.'.join(p.relative_to(root).with_suffix('').parts).removesuffix('.__init__'); mods[n]=p
imp=defaultdict(set)
for n,p in mods.items():
    for x in ast.walk(ast.parse(p.read_text())):
        if isinstance(x,ast.ImportFrom) and x.module and x.module.startswith('ringleader'):
            for a in x.names:
                w=(x.module+'.'+a.name).removeprefix('ringleader.')
                t=w if w in mods else x.module.removeprefix('ringleader').lstrip('.')
                imp[t].add(n)
for f in sys.argv[1:]:
    for n in sorted(mods):
        if n==f or n.startswith(f+'.'):
            p=mods[n]; t=ast.parse(p.read_text()); d=(ast.get_docstring(t) or '').split('\n\n')[0].replace('\n',' ')
            own={i for i in imp[n] if i.split('.')[0]==n.split('.')[0]}; oth=sorted(imp[n]-own)
            defs=[x.name for x in t.body if isinstance(x,(ast.FunctionDef,ast.ClassDef,ast.AsyncFunctionDef)) and not x.name.startswith('_')]
            print(f"{n} [{len(p.read_text().splitlines())}] {d}\n    defs: {' '.join(defs)}\n    used by own: {' '.join(sorted(i.split('.',1)[-1] for i in own))} | others: {' '.join(oth)}")
