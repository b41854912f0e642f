#!/usr/bin/env python3
"""Moves and merges modules of a package by a plan, and rewrites every import of them.

    python move.py PLAN.py [--root DIR] [--write]

PLAN.py defines
  MOVES    {new module: [old modules, in the order of the new file]}, names without the package
  RENAMES  {"old.module.name": "new_name"}
  DOCS     {new module: docstring}
  FACES    subsystems of which others import through the folder itself
  KEEP     {"old.module"}: used as a module (``name.attr``) also after the move
  THROUGH  packages whose ``__init__`` re-exports: names imported from them are followed to their homes
  GONE     packages whose ``__init__`` is deleted
  OUT      {new module: path}: where it does not follow from its name
  WORDS    {"old.package": "new.package"}: in texts, for packages that are no modules of the plan
A new module "tests.x.y" lies in tests/x/y.py and is imported by that name.
Without --write it reports what it would do and what a person has to decide.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import re
import runpy
import subprocess
import sys
import textwrap
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

PKG = "ringleader"
BUILTINS = set(dir(builtins))
TEXTS = ["*.py", "*.md", "*.toml", "*.yml", "*.yaml", "*.sh", "Makefile", "*.cfg", "*.txt", "*.json", "*.js", "*.html", "*.proto"]
problems: list[str] = []


def say(text: str) -> None:
    problems.append(text)


# ---------------------------------------------------------------- scopes


class Scope:
    def __init__(self, node: ast.AST, parent: Scope | None, kind: str) -> None:
        self.node, self.parent, self.kind = node, parent, kind
        self.bound: set[str] = set()
        self.globals: set[str] = set()


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Scoper(ast.NodeVisitor):
    """Gives every Name the scope in which it stands; then names resolve."""

    def __init__(self, tree: ast.Module) -> None:
        self.top = Scope(tree, None, "module")
        self.scope = self.top
        self.names: list[tuple[ast.Name, Scope]] = []
        self.imports: list[tuple[ast.Import | ast.ImportFrom, Scope]] = []
        self.attributes: list[tuple[ast.Attribute, Scope]] = []
        self.global_statements: list[tuple[ast.Global, Scope]] = []
        self.strings: list[tuple[ast.Constant, Scope]] = []
        self.defs: list[tuple[ast.AST, Scope]] = []
        for item in tree.body:
            self.visit(item)

    def inside(self, node: ast.AST, kind: str) -> Scope:
        self.scope = Scope(node, self.scope, kind)
        return self.scope

    def out(self) -> None:
        assert self.scope.parent
        self.scope = self.scope.parent

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.scope.bound.add(node.name)
        self.defs.append((node, self.scope))
        for item in node.decorator_list:
            self.visit(item)
        self.visit_args_outside(node.args)
        if node.returns:
            self.visit(node.returns)
        scope = self.inside(node, "function")
        for arg in self.args(node.args):
            scope.bound.add(arg.arg)
        for item in node.body:
            self.visit(item)
        self.out()

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    @staticmethod
    def args(args: ast.arguments) -> list[ast.arg]:
        found = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        return found + [a for a in (args.vararg, args.kwarg) if a]

    def visit_args_outside(self, args: ast.arguments) -> None:
        for arg in self.args(args):
            if arg.annotation:
                self.visit(arg.annotation)
        for item in [*args.defaults, *[d for d in args.kw_defaults if d]]:
            self.visit(item)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit_args_outside(node.args)
        scope = self.inside(node, "function")
        for arg in self.args(node.args):
            scope.bound.add(arg.arg)
        self.visit(node.body)
        self.out()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.scope.bound.add(node.name)
        self.defs.append((node, self.scope))
        for item in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(item)
        self.inside(node, "class")
        for item in node.body:
            self.visit(item)
        self.out()

    def comprehension(self, node: ast.AST) -> None:
        generators = node.generators  # type: ignore[attr-defined]
        self.visit(generators[0].iter)
        self.inside(node, "function")
        for index, generator in enumerate(generators):
            self.visit(generator.target)
            if index:
                self.visit(generator.iter)
            for test in generator.ifs:
                self.visit(test)
        for part in ("elt", "key", "value"):
            if hasattr(node, part):
                self.visit(getattr(node, part))
        self.out()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comprehension

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        scope = self.scope
        while isinstance(scope.node, COMPREHENSIONS):
            assert scope.parent
            scope = scope.parent
        assert isinstance(node.target, ast.Name)
        scope.bound.add(node.target.id)
        self.names.append((node.target, scope))
        self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store | ast.Del):
            self.scope.bound.add(node.id)
        self.names.append((node, self.scope))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.attributes.append((node, self.scope))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.strings.append((node, self.scope))

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.scope.bound.add(node.name)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.scope.globals.update(node.names)
        self.global_statements.append((node, self.scope))

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.scope.globals.update(f"!{name}" for name in node.names)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self.scope.bound.add(node.name)
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self.scope.bound.add(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self.scope.bound.add(node.rest)
        self.generic_visit(node)

    def import_(self, node: ast.Import | ast.ImportFrom) -> None:
        self.imports.append((node, self.scope))
        for alias in node.names:
            bound = alias.asname or (alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name)
            self.scope.bound.add(bound)

    visit_Import = visit_ImportFrom = import_

    def home(self, name: str, scope: Scope) -> Scope | None:
        """The scope that binds a name used in ``scope``, or None for a builtin."""
        here: Scope | None = scope
        first = True
        while here is not None:
            if name in here.globals:
                return self.top
            if name in here.bound and f"!{name}" not in here.globals and (first or here.kind != "class"):
                return here
            first = False
            here = here.parent
        return None


# ---------------------------------------------------------------- modules


@dataclass
class File:
    path: Path
    name: str  # dotted, or the path for files outside of the package
    source: str
    tree: ast.Module
    scoper: Scoper
    offsets: list[int] = field(default_factory=list)
    edits: list[tuple[int, int, str]] = field(default_factory=list)
    header: list[Import] = field(default_factory=list)

    @property
    def inside(self) -> bool:
        return self.name.startswith(PKG)

    def at(self, line: int, column: int) -> int:
        start = self.offsets[line - 1]
        text = self.source[start:].split("\n", 1)[0]
        if text.isascii():
            return start + column
        return start + len(text.encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def replace(self, node: ast.AST, text: str) -> None:
        self.edits.append((*self.span(node), text))


@dataclass(frozen=True)
class Import:
    """One imported name: ``from module import name as bound``; name "" is ``import module``."""

    module: str
    name: str
    bound: str
    typing: bool = False
    comment: str = ""

    def text(self) -> str:
        comment = f"  {self.comment}" if self.comment else ""
        if not self.name:
            whole = self.module if self.bound == self.module.split(".")[0] else f"{self.module} as {self.bound}"
            return f"import {whole}{comment}"
        alias = "" if self.bound == self.name else f" as {self.bound}"
        return f"from {self.module} import {self.name}{alias}{comment}"


def load(path: Path, name: str) -> File:
    source = path.read_text()
    tree = ast.parse(source, str(path))
    offsets = [0]
    for line in source.split("\n"):
        offsets.append(offsets[-1] + len(line) + 1)
    return File(path, name, source, tree, Scoper(tree), offsets)


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse


def assigned(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def as_comment(note: str) -> str:
    """A docstring as a comment, its lines filled anew where they would be too long."""
    lines: list[str] = []
    for paragraph in note.split("\n\n"):
        if lines:
            lines.append("#")
        raw = paragraph.split("\n")
        if max(map(len, raw)) > 86:
            is_plain = not any(line.startswith((" ", "-", "*", "|")) for line in raw)
            raw = textwrap.wrap(" ".join(raw), 86) if is_plain else [x for line in raw for x in textwrap.wrap(line, 86, subsequent_indent="  ") or [""]]
        lines += [f"# {line}".rstrip() for line in raw]
    return "\n".join(lines) + "\n"


class Mover:
    def __init__(self, root: Path, plan: dict[str, object]) -> None:
        self.root = root
        def full(name: str) -> str:
            if name.split(".")[0] == "tests":
                return name
            return f"{PKG}.{name}" if name else PKG

        self.moves = {full(new): [full(o) for o in olds] for new, olds in plan["MOVES"].items()}  # type: ignore[attr-defined]
        self.renames: dict[tuple[str, str], str] = {}
        for key, new in plan.get("RENAMES", {}).items():  # type: ignore[attr-defined]
            module, _, name = key.rpartition(".")
            self.renames[full(module), name] = new
        self.docs = {full(k): v for k, v in plan.get("DOCS", {}).items()}  # type: ignore[attr-defined]
        self.faces = {full(k) for k in plan.get("FACES", ())}  # type: ignore[attr-defined]
        self.keep = {full(k) for k in plan.get("KEEP", ())}  # type: ignore[attr-defined]
        self.out = {full(k): v for k, v in plan.get("OUT", {}).items()}  # type: ignore[attr-defined]
        self.through = {full(k) for k in plan.get("THROUGH", ())}  # type: ignore[attr-defined]
        self.gone = {full(k) for k in plan.get("GONE", ())}  # type: ignore[attr-defined]
        self.words = {full(k): full(v) for k, v in plan.get("WORDS", {}).items()}  # type: ignore[attr-defined]
        self.files: dict[str, File] = {}
        src = root / "src" / PKG
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
        self.tracked = [root / t for t in tracked if t and not t.startswith("house/") and (root / t).is_file()]
        for path in self.tracked:
            if path.suffix != ".py":
                continue
            if path.is_relative_to(src):
                name = ".".join((PKG, *path.relative_to(src).with_suffix("").parts)).removesuffix(".__init__")
            else:
                name = path.relative_to(root).as_posix()
            self.files[name] = load(path, name)
        for key, edits in plan.get("EDITS", {}).items():  # type: ignore[attr-defined]
            source = self.files[full(key)].source
            for old_text, new_text in edits:
                if source.count(old_text) != 1:
                    raise SystemExit(f"plan: EDITS of {key}: {source.count(old_text)} times {old_text!r}")
                source = source.replace(old_text, new_text)
            self.files[full(key)] = self.fresh(self.files[full(key)].path, full(key), source)
        self.split_off: dict[tuple[str, str], str] = {}
        for virtual, (old, names) in plan.get("SPLITS", {}).items():  # type: ignore[attr-defined]
            self.split(full(virtual), full(old), names)
        self.new_of = {old: new for new, olds in self.moves.items() for old in olds}
        for new, olds in self.moves.items():
            for old in olds:
                if old not in self.files:
                    raise SystemExit(f"plan: {old} (into {new}) is no module")
        clash = [n for n in self.moves if n in self.files and self.new_of.get(n, n) != n]
        clash += [n for n in self.moves if n in self.files and n not in self.new_of]
        if clash:
            raise SystemExit(f"plan: a new module has the name of an old one that is not in it: {clash}")
        double = [o for o in self.new_of if sum(o in olds for olds in self.moves.values()) > 1]
        if double:
            raise SystemExit(f"plan: moved twice: {double}")
        self.packages = {n for n, f in self.files.items() if f.path.name == "__init__.py"}
        self.aliases: dict[tuple[str, str], str] = {}
        # `ringleader.checkpoint.save` is a function although a module has that name, too
        self.shown = {
            f"{package}.{alias.asname or alias.name}"
            for package in self.packages
            for node in self.files[package].tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        } & set(self.files)
        self.shown = {s for s in self.shown if s.rpartition(".")[2] in self.bound_as_name(s)}
        folders = {o.rpartition(".")[0] for o in self.new_of if o not in self.packages}
        for name, file in self.files.items():
            if file.inside and name.rpartition(".")[0] in folders and name not in self.new_of and file.path.name != "__init__.py" and "_pb2" not in name:
                say(f"UNMAPPED {name}")

    def bound_as_name(self, whole: str) -> set[str]:
        """The names that the package of ``whole`` imports out of modules, not as modules."""
        package = whole.rpartition(".")[0]
        return {
            alias.asname or alias.name
            for node in self.files[package].tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
            if f"{node.module}.{alias.name}" not in self.files
        }

    def split(self, virtual: str, old: str, names: list[str]) -> None:
        """Treat some definitions of a module as a module of their own."""
        file = self.files[old]
        lines = file.source.split("\n")
        taken: list[tuple[int, int]] = []
        body = file.tree.body
        for index, node in enumerate(body):
            if not set(assigned(node)) & set(names):
                continue
            start = min([node.lineno, *[d.lineno for d in getattr(node, "decorator_list", [])]]) - 1
            before = body[index - 1].end_lineno if index else 0
            while start > before and lines[start - 1].startswith("#"):
                start -= 1
            end = node.end_lineno or node.lineno
            after = body[index + 1] if index + 1 < len(body) else None
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(node, ast.Assign | ast.AnnAssign):
                end = after.end_lineno or end
            taken.append((start, end))
        found = {n for node in body for n in assigned(node)} & set(names)
        if found != set(names):
            raise SystemExit(f"plan: {old} does not define {set(names) - found}")
        rest = [x for i, x in enumerate(lines) if not any(a <= i < b for a, b in taken)]
        cut = [x for a, b in taken for x in ["", "", *lines[a:b]]]
        header_end = max((n.end_lineno or 0 for n in self.header_imports(file)), default=0)
        # TYPE_CHECKING blocks end where their last import does
        head = lines[:header_end]
        if isinstance(body[0], ast.Expr):
            head = head[body[0].end_lineno or 0 :]
        tops = {n for node in body for n in assigned(node)}

        def used(text: list[str], of: set[str]) -> set[str]:
            words = {n.id for n in ast.walk(ast.parse("\n".join(text))) if isinstance(n, ast.Name)}
            return words & of

        back = sorted(used(cut, tops - found))
        forth = sorted(used(rest, found))
        head = self.needed_header(file, cut)
        virtual_text = "\n".join(head) + "\n" + (f"from {old} import {', '.join(back)}\n" if back else "") + "\n".join(cut) + "\n"
        if forth:
            rest.insert(header_end, f"from {virtual} import {', '.join(forth)}")
        file.source, file.tree = "\n".join(rest), ast.parse("\n".join(rest))
        self.files[old] = self.fresh(file.path, old, file.source)
        self.files[virtual] = self.fresh(file.path, virtual, virtual_text)
        for name in names:
            self.split_off[old, name] = virtual

    def needed_header(self, file: File, cut: list[str]) -> list[str]:
        """The imports of ``file`` that the lines of ``cut`` use: others could make circles."""
        words = {n.id for n in ast.walk(ast.parse("\n".join(cut))) if isinstance(n, ast.Name)}
        now, late = [], []
        for node in self.header_imports(file):
            lead = "import " if isinstance(node, ast.Import) else f"from {node.module} import "
            for alias in node.names:
                bound = alias.asname or (alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name)
                if bound in words or bound == "annotations":
                    (late if self.in_type_checking(file, node) else now).append(lead + ast.unparse(alias))
        if late and "from typing import TYPE_CHECKING" not in now:
            now.append("from typing import TYPE_CHECKING")
        return now + (["if TYPE_CHECKING:", *(f"    {line}" for line in late)] if late else [])

    @staticmethod
    def fresh(path: Path, name: str, source: str) -> File:
        tree = ast.parse(source, name)
        offsets = [0]
        for line in source.split("\n"):
            offsets.append(offsets[-1] + len(line) + 1)
        return File(path, name, source, tree, Scoper(tree), offsets)

    # ------------------------------------------------ where things are

    def new_module(self, old: str) -> str:
        return self.new_of.get(old, old)

    def is_merged(self, new: str) -> bool:
        return len(self.moves.get(new, ())) > 1

    def subsystem(self, module: str) -> str:
        parts = module.split(".")
        return ".".join(parts[:2]) if parts[0] == PKG else ""

    def import_path(self, old: str, importer: File) -> str:
        """The module from which ``importer`` imports what ``old`` defines."""
        new = self.new_module(old)
        there = self.subsystem(new)
        if there in self.faces and new != there:
            if importer.inside:
                if self.subsystem(self.new_module(importer.name)) != there:
                    return there
            elif not self.is_own_unit_test(importer, there):
                return there
        return new

    def is_own_unit_test(self, importer: File, there: str) -> bool:
        return True  # tests may look inside; they are sorted out in a step of its own

    def new_name(self, old: str, name: str) -> str:
        return self.renames.get((old, name), name)

    def resolve(self, module: str, name: str) -> tuple[str, str]:
        """What ``from module import name`` means: (old module, name), name "" a module."""
        whole = f"{module}.{name}"
        if whole in self.files and whole not in self.shown:
            return whole, ""
        if module in self.through:
            for node in self.files[module].tree.body:
                if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PKG:
                    for alias in node.names:
                        if (alias.asname or alias.name) == name:
                            return self.resolve(node.module, alias.name)
        if (module, name) in self.split_off:
            return self.split_off[module, name], name
        return self.home_of(module, name), name

    def home_of(self, module: str, name: str) -> str:
        """The module that defines a name; one that moves may only have imported it."""
        file = self.files.get(module)
        if file is None or module not in self.new_of or file.path.name == "__init__.py":
            return module
        for node in file.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PKG:
                for alias in node.names:
                    if alias.name == name and alias.asname in (None, name):
                        home, inner = self.resolve(node.module, name)
                        return home if inner == name else module
        return module

    # ------------------------------------------------ names of merged modules

    def decide_names(self) -> None:
        """Rename what would collide in a merged module, or was named to be qualified."""
        qualified: dict[str, set[str]] = defaultdict(set)
        for file in self.files.values():
            if not file.inside:
                continue
            for bound, target in self.module_bindings(file).items():
                for node, scope in file.scoper.attributes:
                    if isinstance(node.value, ast.Name) and node.value.id == bound[0] and file.scoper.home(bound[0], scope) is bound[1]:
                        if self.needs_names(target, file):
                            qualified[target].add(node.attr)
        for old, names in sorted(qualified.items()):
            for name in sorted(names):
                if (old, name) not in self.renames and name not in self.packages and not name.startswith("__"):
                    top = self.files[old].scoper.top.bound
                    if name not in top:
                        say(f"{old}.{name}: not bound there, used by a module")
                        continue
                    if not name[:1].isupper() or name.isupper():
                        if "_" not in name.strip("_"):
                            self.renames[old, name] = self.qualified_name(old, name)
                            print(f"RENAME {old}.{name} -> {self.renames[old, name]}")
        for new, olds in self.moves.items():
            if len(olds) == 1:
                continue
            taken: dict[str, tuple[str, str]] = {}  # name -> (old module, "def" | import text)
            for old in olds:
                file = self.files[old]
                for name, what in self.top_names(file).items():
                    now = self.new_name(old, name) if what == "def" else self.aliases.get((old, name), name)
                    if now not in taken:
                        taken[now] = (old, what)
                        continue
                    other, was = taken[now]
                    if was == what and what != "def":
                        continue  # the same import
                    if was == what == "def" and self.same_text(other, old, name):
                        continue
                    if what.startswith("import:") and self.is_own(what, new, now):
                        continue
                    if was.startswith("import:") and self.is_own(was, new, now):
                        taken[now] = (old, what)
                        continue
                    better = self.qualified_name(old, name)
                    if better in taken or better == now:
                        better = f"{better}_{old.rsplit('.', 1)[-1]}"
                    if what == "def":
                        self.renames[old, name] = better
                    else:
                        self.aliases[old, name] = better
                    taken[better] = (old, what)
                    say(f"NAME {new}: {name} of {old} collides with {other}: {better}")

    def is_own(self, what: str, new: str, name: str) -> bool:
        """Whether an import means a definition that the new module holds itself."""
        module, _, imported = what.removeprefix("import:").rpartition(":")
        old, inner = self.resolve(module, imported) if imported else (module, "")
        if not inner or self.new_module(old) != new:
            return False
        return self.new_name(old, inner) == name

    def qualified_name(self, old: str, name: str) -> str:
        base = old.rsplit(".", 1)[-1]
        lead = "_" if name.startswith("_") else ""
        bare = name.lstrip("_")
        if bare.isupper():
            return f"{lead}{base.upper()}_{bare}"
        if bare[:1].isupper():
            return lead + "".join(p.title() for p in base.split("_")) + bare
        return f"{lead}{bare}_{base}"

    def same_text(self, a: str, b: str, name: str) -> bool:
        texts = []
        for module in (a, b):
            file = self.files[module]
            for node in file.tree.body:
                if name in assigned(node):
                    if not isinstance(node, ast.Assign | ast.AnnAssign):
                        return False
                    texts.append(ast.unparse(node))
        return len(texts) == 2 and texts[0] == texts[1]

    def top_names(self, file: File) -> dict[str, str]:
        found: dict[str, str] = {}
        for node, scope in file.scoper.imports:
            if scope is not file.scoper.top:
                continue
            for alias in node.names:
                if isinstance(node, ast.Import):
                    bound = alias.asname or alias.name.split(".")[0]
                    found[bound] = f"import:{alias.name if alias.asname else alias.name.split('.')[0]}:"
                else:
                    found[alias.asname or alias.name] = f"import:{node.module}:{alias.name}"
        for name in file.scoper.top.bound:
            found.setdefault(name, "def")
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Global):
                for name in node.names:
                    found.setdefault(name, "def")
        return found

    def module_bindings(self, file: File) -> dict[tuple[str, Scope], str]:
        found = {}
        for node, scope in file.scoper.imports:
            for alias in node.names:
                if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PKG:
                    target, inner = self.resolve(node.module, alias.name)
                    if not inner:
                        found[alias.asname or alias.name, scope] = target
                elif isinstance(node, ast.Import) and alias.asname and alias.name in self.files:
                    found[alias.asname, scope] = alias.name
        return found

    def needs_names(self, target: str, importer: File) -> bool:
        """Whether ``module.name`` becomes a plain name: merged, or across a face."""
        if target in self.keep or target in self.packages:
            return False
        new = self.new_module(target)
        if self.is_merged(new):
            return True
        return self.import_path(target, importer) != new

    # ------------------------------------------------ rewriting one file

    def rewrite(self, file: File) -> None:
        me = self.new_module(file.name)
        scoper = file.scoper
        replaced: dict[tuple[str, Scope], str] = {}  # a binding -> the name that stands for it now
        added: dict[tuple[str, Scope], set[Import]] = defaultdict(set)
        gone: set[tuple[str, Scope]] = set()
        modules = self.module_bindings(file)
        bare = self.bare_uses(file, modules)

        for node, scope in scoper.imports:
            outs: list[Import] = []
            typing = self.in_type_checking(file, node)
            comment = self.comment_of(file, node)
            for alias in node.names:
                outs += self.rewrite_alias(file, node, alias, scope, (me, typing, comment), (modules, bare, replaced, gone))
            self.place(file, node, scope, outs)
        # names
        for name_node, scope in scoper.names:
            home = scoper.home(name_node.id, scope)
            if home is None:
                continue
            key = (name_node.id, home)
            if key in replaced:
                file.replace(name_node, replaced[key])
            elif home is scoper.top:
                new = self.own_name(file, name_node.id)
                if new != name_node.id:
                    file.replace(name_node, new)
        for node, scope in scoper.defs:
            if scope is scoper.top or (hasattr(node, "name") and scoper.home(node.name, scope) is scoper.top):  # type: ignore[attr-defined]
                new = self.own_name(file, node.name)  # type: ignore[attr-defined]
                if new != node.name:  # type: ignore[attr-defined]
                    start, end = file.span(node)
                    found = re.compile(r"(def|class)\s+").search(file.source, start)
                    assert found
                    file.edits.append((found.end(), found.end() + len(node.name), new))  # type: ignore[attr-defined]
        for statement, _ in scoper.global_statements:
            new_names = [self.own_name(file, n) for n in statement.names]
            if new_names != statement.names:
                file.replace(statement, "global " + ", ".join(new_names))
        for attribute, scope in scoper.attributes:
            self.rewrite_attribute(file, attribute, scope, modules, bare, gone)
        for constant, scope in scoper.strings:
            self.rewrite_string(file, constant, scope, modules)

    def own_name(self, file: File, name: str) -> str:
        if (file.name, name) in self.renames:
            return self.renames[file.name, name]
        return self.aliases.get((file.name, name), name)

    def bare_uses(self, file: File, modules: dict[tuple[str, Scope], str]) -> set[tuple[str, Scope]]:
        """Bindings of modules that are used as such, not only as ``module.name``."""
        inner = {id(node.value) for node, _ in file.scoper.attributes if not node.attr.startswith("__")}
        if not file.inside:  # a test that sets ``module.NAME`` needs the module
            inner -= {id(n.value) for n, _ in file.scoper.attributes if isinstance(n.ctx, ast.Store | ast.Del)}
        found = set()
        for node, scope in file.scoper.names:
            home = file.scoper.home(node.id, scope)
            if home and (node.id, home) in modules and id(node) not in inner:
                found.add((node.id, home))
        return found

    def all_bound(self, file: File) -> set[str]:
        """Names that any scope of a file binds."""
        names = {n.id for n, _ in file.scoper.names if isinstance(n.ctx, ast.Store | ast.Del)}
        return names | {n.arg for n in ast.walk(file.tree) if isinstance(n, ast.arg)}

    def in_type_checking(self, file: File, node: ast.AST) -> bool:
        return any(is_type_checking(item) and node in ast.walk(item) for item in file.tree.body if isinstance(item, ast.If))

    def comment_of(self, file: File, node: ast.AST) -> str:
        end = file.span(node)[1]
        rest = file.source[end:].split("\n", 1)[0].strip()
        return rest if rest.startswith("#") else ""

    def rewrite_alias(self, file, node, alias, scope, context, state) -> list[Import]:  # type: ignore[no-untyped-def]
        me, typing, comment = context
        modules, bare, replaced, gone = state
        bound = alias.asname or (alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name)
        if isinstance(node, ast.Import):
            if alias.name.split(".")[0] != PKG or alias.name == PKG:
                new_bound = self.aliases.get((file.name, bound), bound) if scope is file.scoper.top else bound
                return [Import(alias.name, "", new_bound, typing, comment)]
            new = self.new_module(alias.name)
            if alias.asname is None and new != alias.name:
                say(f"{file.name}:{node.lineno}: import {alias.name} without `as`: by hand")
            return [Import(new, "", bound, typing, comment)]
        if not node.module or node.module.split(".")[0] != PKG or node.level:
            new_bound = self.aliases.get((file.name, bound), bound) if scope is file.scoper.top else bound
            return [Import(node.module or "", alias.name, new_bound, typing, comment)]
        old, inner = self.resolve(node.module, alias.name)
        new = self.new_module(old)
        if inner:  # a name
            now = self.new_name(old, inner)
            if new == me and file.inside:
                if now != bound:
                    replaced[bound, scope] = now
                self.check_shadow(file, now, bound, scope)
                return []
            final = bound
            if bound == inner and now != inner:
                final = now
                replaced[bound, scope] = now
            if scope is file.scoper.top and (file.name, bound) in self.aliases:
                final = self.aliases[file.name, bound]
                replaced[bound, scope] = final
            return [Import(self.import_path(old, file), now, final, typing, comment)]
        # a module
        key = (bound, scope)
        if old in self.packages and old not in self.new_of:
            return [Import(node.module, alias.name, bound, typing, comment)]
        if not self.needs_names(old, file) or (key in bare and not file.inside):
            parent, _, base = new.rpartition(".")
            final = bound
            if bound == alias.name and base != alias.name:
                final = base
                if base in scope.bound or base in file.scoper.top.bound or base in self.all_bound(file):
                    final = bound
                else:
                    replaced[key] = base
            return [Import(parent, base, final, typing, comment)]
        if key in bare:
            say(f"{file.name}:{node.lineno}: the module {old} itself is used: by hand")
        gone.add(key)
        outs = []
        for attribute, where in file.scoper.attributes:
            if isinstance(attribute.value, ast.Name) and attribute.value.id == bound and file.scoper.home(bound, where) is scope:
                now = self.new_name(old, attribute.attr)
                if new != me or not file.inside:
                    outs.append(Import(self.import_path(old, file), now, now, typing, comment))
        return sorted(set(outs), key=lambda i: i.name)

    def check_shadow(self, file: File, now: str, bound: str, scope: Scope) -> None:
        for node, where in file.scoper.names:
            if node.id == bound and file.scoper.home(bound, where) is scope:
                home = file.scoper.home(now, where)
                if home is not None and home.kind != "module" and home is not scope:
                    say(f"{file.name}:{node.lineno}: {now} is a local name here")

    def rewrite_attribute(self, file, attribute, scope, modules, bare, gone) -> None:  # type: ignore[no-untyped-def]
        if not isinstance(attribute.value, ast.Name):
            return
        bound = attribute.value.id
        home = file.scoper.home(bound, scope)
        if home is None or (bound, home) not in modules:
            return
        old = modules[bound, home]
        now = self.new_name(old, attribute.attr)
        if (bound, home) in gone:
            local = file.scoper.home(now, scope)
            if local is not None and local.kind != "module":
                say(f"{file.name}:{attribute.lineno}: {now} (was {bound}.{attribute.attr}) is a local name here")
            elif local is not None and (file.name, now) not in self.renames and self.new_module(old) != self.new_module(file.name):
                say(f"{file.name}:{attribute.lineno}: {now} (was {bound}.{attribute.attr}) is bound at the top already")
            start, end = file.span(attribute)
            file.edits = [e for e in file.edits if not (start <= e[0] and e[1] <= end)]
            file.edits.append((start, end, now))
        elif now != attribute.attr:
            end = file.span(attribute)[1]
            file.edits.append((end - len(attribute.attr), end, now))

    def rewrite_string(self, file: File, node: ast.Constant, scope: Scope, modules: dict[tuple[str, Scope], str]) -> None:
        """``cast("Name", x)`` and ``setattr(module, "name", x)`` follow renames."""
        parent = self.parents(file).get(id(node))
        if not isinstance(parent, ast.Call):
            return
        called = parent.func
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name == "cast" and parent.args and parent.args[0] is node and node.value.isidentifier():
            home = file.scoper.home(node.value, scope)
            if home is file.scoper.top:
                new = self.own_name(file, node.value)
                if new != node.value:
                    file.replace(node, f'"{new}"')
        if name in ("setattr", "delattr", "getattr", "object", "patch") and len(parent.args) >= 2 and parent.args[1] is node:
            first = parent.args[0]
            if isinstance(first, ast.Name):
                home = file.scoper.home(first.id, scope)
                if home and (first.id, home) in modules:
                    new = self.new_name(modules[first.id, home], node.value)
                    if new != node.value:
                        file.replace(node, f'"{new}"')

    def parents(self, file: File) -> dict[int, ast.AST]:
        if not hasattr(file, "_parents"):
            file._parents = {id(c): p for p in ast.walk(file.tree) for c in ast.iter_child_nodes(p)}  # type: ignore[attr-defined]
        return file._parents  # type: ignore[attr-defined]

    def place(self, file: File, node: ast.Import | ast.ImportFrom, scope: Scope, outs: list[Import]) -> None:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            start, end = self.whole_lines(file, node)
            if self.new_module(file.name) in self.moves and file.inside:
                file.edits.append((start, end, ""))
            return
        unchanged = (
            [(o.module, o.name, o.bound) for o in outs]
            == [
                (
                    (a.name, "", a.asname or a.name.split(".")[0])
                    if isinstance(node, ast.Import)
                    else (node.module or "", a.name, a.asname or a.name)
                )
                for a in node.names
            ]
        )
        in_header = node in self.header_imports(file)
        moving = file.inside and file.name in self.new_of
        if in_header and moving:
            file.header += outs
            start, end = self.whole_lines(file, node)
            file.edits.append((start, end, ""))
            return
        if unchanged:
            return
        start, end = file.span(node)
        indent = " " * node.col_offset
        if outs:
            body = [o.text() for o in outs]
            comment = self.comment_of(file, node)
            if comment:
                end = self.whole_lines(file, node)[1] - 1
            file.edits.append((start, end, f"\n{indent}".join(dict.fromkeys(body))))
        elif self.is_only_statement(file, node):
            file.edits.append((start, end, "pass"))
        else:
            file.edits.append((*self.whole_lines(file, node), ""))

    def is_only_statement(self, file: File, node: ast.AST) -> bool:
        parent = self.parents(file).get(id(node))
        for part in ("body", "orelse", "handlers", "finalbody"):
            body = getattr(parent, part, None)
            if isinstance(body, list) and body == [node]:
                return True
        return False

    def whole_lines(self, file: File, node: ast.AST) -> tuple[int, int]:
        return file.offsets[node.lineno - 1], file.offsets[node.end_lineno]  # type: ignore[attr-defined]

    def header_imports(self, file: File) -> list[ast.stmt]:
        if not hasattr(file, "_header"):
            found: list[ast.stmt] = []
            for item in file.tree.body:
                if isinstance(item, ast.Import | ast.ImportFrom):
                    found.append(item)
                elif is_type_checking(item):
                    assert isinstance(item, ast.If)
                    if all(isinstance(i, ast.Import | ast.ImportFrom) for i in item.body):
                        found += item.body
                elif isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
                    continue
                else:
                    break
            # TYPE_CHECKING blocks after the first code, too
            file._header = found  # type: ignore[attr-defined]
        return file._header  # type: ignore[attr-defined]

    # ------------------------------------------------ writing

    def edited(self, file: File) -> str:
        text = file.source
        last = len(text) + 1
        for start, end, new in sorted(set(file.edits), reverse=True):
            if end > last:
                raise SystemExit(f"{file.name}: edits overlap at {text[start:end]!r}")
            text = text[:start] + new + text[end:]
            last = start
        return text

    def part(self, file: File, is_first: bool, new: str) -> tuple[str, str]:
        """(docstring, body) of an old module, edited, without header imports."""
        tree = file.tree
        doc = ast.get_docstring(tree) or ""
        first = tree.body[0] if tree.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            file.edits.append((*self.whole_lines(file, first), ""))
        header = self.header_imports(file)
        for item in tree.body:
            if is_type_checking(item) and isinstance(item, ast.If) and all(i in header for i in item.body):
                start, end = self.whole_lines(file, item)
                file.edits = [e for e in file.edits if not (start <= e[0] and e[1] <= end)]
                file.edits.append((start, end, ""))
        if not is_first:
            for item in tree.body:  # the same simple assignment in an earlier part
                if isinstance(item, ast.Assign | ast.AnnAssign):
                    for earlier in self.moves[new][: self.moves[new].index(file.name)]:
                        if all(self.same_text(earlier, file.name, n) for n in assigned(item)) and assigned(item):
                            if all(self.new_name(earlier, n) == self.new_name(file.name, n) for n in assigned(item)):
                                start, end = self.whole_lines(file, item)
                                file.edits = [e for e in file.edits if not (start <= e[0] and e[1] <= end)]
                                file.edits.append((start, end, ""))
                                break
        return doc, self.edited(file).strip("\n") + "\n"

    def eager(self, file: File) -> set[str]:
        """Names that are needed while the module is being loaded."""
        annotations: set[int] = set()
        for node in ast.walk(file.tree):
            for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
                if part is not None:
                    annotations |= {id(n) for n in ast.walk(part)}
        found = set()
        for name, scope in file.scoper.names:
            if id(name) in annotations or not isinstance(name.ctx, ast.Load):
                continue
            here: Scope | None = scope
            while here is not None and (here.kind == "class" or isinstance(here.node, COMPREHENSIONS)):
                here = here.parent
            if here is file.scoper.top and file.scoper.home(name.id, scope) is file.scoper.top:
                found.add(name.id)
        return found

    def order(self, new: str) -> list[str]:
        """The parts in the order of the plan, but what is needed on loading comes first."""
        olds = self.moves[new]
        needs: dict[str, set[str]] = {o: set() for o in olds}
        for old in olds:
            file = self.files[old]
            eager = self.eager(file)
            for node, scope in file.scoper.imports:
                if scope is file.scoper.top and isinstance(node, ast.ImportFrom) and node.module:
                    for alias in node.names:
                        target, _ = self.resolve(node.module, alias.name)
                        if target in needs and target != old and (alias.asname or alias.name) in eager:
                            needs[old].add(target)
        done: list[str] = []
        def add(old: str, path: tuple[str, ...]) -> None:
            if old in done:
                return
            if old in path:
                say(f"ORDER {new}: {old} needs itself on loading: {path}")
                return
            for other in olds:
                if other in needs[old]:
                    add(other, (*path, old))
            done.append(old)
        for old in olds:
            add(old, ())
        if done != olds:
            print(f"ORDER {new}: {' '.join(d.rsplit('.', 1)[-1] for d in done)}")
        return done

    def merged(self, new: str) -> str:
        docs, bodies, imports = [], [], []
        main_doc = ast.get_docstring(self.files[self.first[new]].tree) or ""
        for index, old in enumerate(self.moves[new]):
            file = self.files[old]
            doc, body = self.part(file, index == 0, new)
            docs.append(doc)
            bodies.append(body)
            imports += file.header
        head = self.docs.get(new) or main_doc
        text = f'"""{head}\n"""\n' if "\n" in head else f'"""{head}"""\n'
        text += "\nfrom __future__ import annotations\n\n"
        runtime = {(i.module, i.name, i.bound) for i in imports if not i.typing}
        late = [i for i in imports if i.typing and (i.module, i.name, i.bound) not in runtime]
        lines = dict.fromkeys(i.text() for i in imports if not i.typing)
        if late:
            lines.setdefault("from typing import TYPE_CHECKING")
        text += "\n".join(lines) + "\n"
        if late:
            text += "\nif TYPE_CHECKING:\n" + "\n".join(dict.fromkeys(f"    {i.text()}" for i in late)) + "\n"
        for index, body in enumerate(bodies):
            text += "\n\n"
            note = docs[index].strip()
            if note and note != head.strip():
                text += as_comment(note) + "\n"
            text += body
        return text

    def path_of(self, new: str) -> Path:
        if new in self.out:
            return self.root / self.out[new]
        if new.split(".")[0] == "tests":
            return self.root.joinpath(*new.split(".")).with_suffix(".py")
        parts = new.split(".")[1:]
        base = self.root / "src" / PKG
        if (new in self.packages and self.stays_folder(new)) or any(other.startswith(new + ".") for other in self.moves):
            return base.joinpath(*parts, "__init__.py")
        return base.joinpath(*parts[:-1], parts[-1] + ".py")

    def stays_folder(self, package: str) -> bool:
        """Whether a module will lie below an old package (else it becomes one file)."""
        inside = f"{package}."
        if package == PKG or any(n.startswith(inside) for n in self.moves):
            return True
        return any(n.startswith(inside) and n not in self.new_of and n not in self.packages for n in self.files)

    def new_folders(self, results: set[Path]) -> dict[Path, str]:
        """The ``__init__.py`` that new folders need, with the docstrings of DOCS."""
        base = self.root / "src" / PKG
        found: dict[Path, str] = {}
        for path in results:
            folder = path.parent
            while folder.is_relative_to(base) and folder != base:
                init = folder / "__init__.py"
                if init not in results and not init.exists():
                    name = ".".join((PKG, *folder.relative_to(base).parts))
                    doc = self.docs.get(name, "")
                    if not doc:
                        say(f"DOCS: {name} is a new folder without a docstring")
                    found[init] = f'"""{doc}\n"""\n' if "\n" in doc else f'"""{doc}"""\n'
                folder = folder.parent
        return found

    def run(self, *, write: bool) -> None:
        self.decide_names()
        self.first = {new: olds[0] for new, olds in self.moves.items()}
        self.moves = {new: self.order(new) if len(olds) > 1 else olds for new, olds in self.moves.items()}
        for new, olds in self.moves.items():
            self.check_capture(new, olds)
        self.check_cycles()
        for file in self.files.values():
            self.rewrite(file)
        results = {self.path_of(new): self.merged(new) for new in self.moves}
        for name, file in self.files.items():
            if name in self.gone and name not in self.new_of:
                continue
            if name not in self.new_of and (file.edits or name in {m for m, _ in self.split_off}):
                results[file.path] = self.edited(file)
        results |= self.new_folders(set(results))
        if write:
            for path, text in results.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            old_paths = {self.files[o].path for o in self.new_of}
            for name in self.new_of:  # the types of generated code lie beside it
                stub = self.files[name].path.with_suffix(".pyi")
                if stub.exists() and self.path_of(self.new_of[name]) != self.files[name].path:
                    new_stub = self.path_of(self.new_of[name]).with_suffix(".pyi")
                    new_stub.parent.mkdir(parents=True, exist_ok=True)
                    stub.rename(new_stub)
            for path in old_paths - set(results):
                path.unlink()
            for name in self.gone:
                self.files[name].path.unlink(missing_ok=True)
            for name in sorted(self.packages - self.gone, key=lambda n: -n.count(".")):  # folders of which nothing is left
                path = self.files[name].path
                if not path.exists():
                    continue
                left = [p for p in path.parent.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
                if left == [path] and not self.files[name].tree.body[1:]:
                    path.unlink()
            self.rewrite_texts(set(results))
        for text in problems:
            print(text)

    def check_cycles(self) -> None:
        """Report circles of imports among modules as they will be, with what causes them."""
        edges: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        typing: set[tuple[str, str]] = set()
        for file in self.files.values():
            if not file.inside or file.name == PKG:
                continue
            me = self.new_module(file.name)
            for node, scope in file.scoper.imports:
                if not isinstance(node, ast.ImportFrom) or not node.module or node.module.split(".")[0] != PKG:
                    continue
                if self.in_type_checking(file, node):
                    continue
                for alias in node.names:
                    old, inner = self.resolve(node.module, alias.name)
                    new = self.new_module(old)
                    if new != me and old in self.files and old != PKG:
                        late = "" if scope is file.scoper.top else " (in a function)"
                        edges[me][new].add(f"{file.name.removeprefix(PKG + '.')} -> {old.removeprefix(PKG + '.')}.{inner}{late}")
        index: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        groups: list[list[str]] = []

        def visit(node: str) -> None:
            index[node] = low[node] = len(index)
            stack.append(node)
            for other in edges[node].copy():
                if other not in index:
                    visit(other)
                    low[node] = min(low[node], low[other])
                elif other in stack:
                    low[node] = min(low[node], index[other])
            if low[node] == index[node]:
                group = []
                while True:
                    last = stack.pop()
                    group.append(last)
                    if last == node:
                        break
                if len(group) > 1:
                    groups.append(group)

        for node in list(edges):
            if node not in index:
                visit(node)
        for group in groups:
            say(f"CIRCLE of {len(group)}: {' '.join(sorted(group))}")
            for a in sorted(group):
                for b in sorted(edges[a]):
                    if b in group:
                        say(f"    {a} -> {b}: {'; '.join(sorted(edges[a][b])[:6])}")

    def check_capture(self, new: str, olds: list[str]) -> None:
        """A builtin that one part uses must not be a global of another."""
        defined = {}
        for old in olds:
            for name, what in self.top_names(self.files[old]).items():
                defined[self.own_name(self.files[old], name)] = old
        for old in olds:
            file = self.files[old]
            for node, scope in file.scoper.names:
                if file.scoper.home(node.id, scope) is None and node.id in defined and defined[node.id] != old:
                    say(f"CAPTURE {new}: {old}:{node.lineno} uses builtin {node.id}, defined by {defined[node.id]}")
                    break

    @staticmethod
    def is_imported(match: re.Match[str]) -> bool:
        """What stands after ``from`` is a module, too."""
        return match.string[max(0, match.start() - 5) : match.start()] == "from "

    def rewrite_texts(self, done: set[Path]) -> None:
        """Names and paths of modules in strings, documents and configuration."""
        dotted = re.compile(rf"\b{PKG}(?:\.[A-Za-z_]\w*)+")
        slashed = re.compile(rf"\b(?:src/)?{PKG}(?:/\w+)+\.py\b")

        def new_dotted(match: re.Match[str]) -> str:
            parts = match[0].split(".")
            around = match.string[match.start() - 1 : match.start()] + match.string[match.end() : match.end() + 1]
            is_string = around in ("''", '""')  # a whole string names a module, or what is in it
            for cut in range(len(parts), 1, -1):
                old = ".".join(parts[:cut])
                if old in self.shown and not is_string and not self.is_imported(match):
                    return match[0]
                if old in self.packages and cut < len(parts):
                    continue  # what lies below moves by its own name; and names of protobuf packages are no modules
                if old in self.new_of:
                    rest = parts[cut:]
                    if rest:
                        rest[0] = self.new_name(old, rest[0])
                    return ".".join([self.new_of[old], *rest])
                if old in self.through and parts[cut:]:
                    home, inner = self.resolve(old, parts[cut])
                    if home != old and inner:
                        return ".".join([self.new_module(home), self.new_name(home, inner), *parts[cut + 1 :]])
                if old in self.words:
                    return ".".join([self.words[old], *parts[cut:]])
            return match[0]

        def new_slashed(match: re.Match[str]) -> str:
            lead = "src/" if match[0].startswith("src/") else ""
            old = match[0].removeprefix("src/").removesuffix(".py").replace("/", ".")
            if old not in self.new_of:
                return match[0]
            new = self.new_of[old]
            return ("" if new.startswith("tests.") else lead) + new.replace(".", "/") + ".py"

        for path in {*self.tracked, *done}:
            if not path.is_file() or path.suffix in (".png", ".json", ".svg", ".gz"):
                continue
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue
            new = slashed.sub(new_slashed, dotted.sub(new_dotted, text))
            if new != text:
                path.write_text(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("--root", default=".")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    sys.setrecursionlimit(5000)
    mover = Mover(Path(options.root).resolve(), runpy.run_path(options.plan))
    mover.run(write=options.write)


if __name__ == "__main__":
    main()
