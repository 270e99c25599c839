#!/usr/bin/env python3
"""No import cycle between files of different folders of a crate; inside a folder at most MOST files in one cycle, and
in all crates together at most MOST_CYCLES cycles.

Why: a file in a cycle can be neither read, tested nor moved without the rest of it.

How: reads every `use` and every `a::b` path of each crate's src/ and follows re-exports to the file that defines the
name. A module that only declares or re-exports does not depend on what it names; one that also uses the name does.
Code for tests does not count. `foo.rs` belongs to its own folder and to `foo/`, `foo/mod.rs` to `foo/` only.

Run: scripts/check-cycles.py             all crates must keep to the rule (what `make check` does)
     scripts/check-cycles.py --report    cycles of all crates, with the imports between folders that make them
     scripts/check-cycles.py --report process
"""
import pathlib
import re
import sys

from check_common import ROOT, block_end, code_only, finish, line_of, read, tracked, without_tests

MOST = 5
MOST_CYCLES = 6

_MOD = re.compile(r"\bmod\s+(\w+)\s*\{")
_USE = re.compile(r"\b(pub(?:\s*\([^)]*\))?\s+)?use\s+([^;]+);")
_DEF = re.compile(r"\b(?:fn|struct|enum|union|trait|type|const|static|macro_rules!)\s+(?:mut\s+)?(\w+)")
_PUBLIC = re.compile(
    r"\bpub(?:\([^)]*\))?\s+(?:(?:const|unsafe|async|extern)\s+)*"
    r"(?:fn|struct|enum|union|trait|type|const|static)\s+(?:mut\s+)?(\w+)"
)
_PATH = re.compile(r"(?<![\w:])\w+(?:::\w+)+")
_TEST_FILE = re.compile(r"#\[cfg\(([^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")


class Module:
    """A module, of a file or inline: what it defines, imports and names."""

    def __init__(self, file):
        self.file = file
        self.defined = set()
        self.public = set()
        self.imported = {}  # name -> path
        self.globs = []
        self.uses = []  # (path, name or None for a glob, is it a re-export, line)
        self.paths = []  # (path, line)
        self.words = set()


def use_tree(text):
    """(path, name, offset) of each leaf of a use tree; the name of a glob is None."""
    tokens = [(m.group(), m.start()) for m in re.finditer(r"\w+|::|[{},*]", text)]
    leaves, at = [], 0

    def tree(prefix):
        nonlocal at
        path, offset = list(prefix), tokens[at][1] if at < len(tokens) else 0
        while at < len(tokens):
            token, where = tokens[at]
            if token == "{":
                at += 1
                while at < len(tokens) and tokens[at][0] != "}":
                    tree(path)
                    if at < len(tokens) and tokens[at][0] == ",":
                        at += 1
                at += 1
                return
            if token in (",", "}"):
                break
            at += 1
            if token == "::":
                continue
            if token == "*":
                leaves.append((path, None, where))
                return
            if token == "as":
                name = tokens[at][0]
                at += 1
                leaves.append((path, name, offset))
                return
            if not (token == "self" and path):
                path = path + [token]
        if path:
            leaves.append((path, path[-1], offset))

    tree([])
    return leaves


class Crate:
    """The modules of one crate and who needs whom."""

    def __init__(self, root, name):
        self.modules = {}
        sources = [file for file in tracked(root / name / "src", ".rs") if not file.startswith("bin/")]
        texts = {file: code_only((root / name / "src" / file).read_text()) for file in sources}
        skipped = self._test_files(texts)
        for file, text in texts.items():
            path = module_path(file)
            if not any(path[:len(test)] == test for test in skipped):
                self._read(path, f"{name}/src/{file}", without_tests(text))

    @staticmethod
    def _test_files(texts):
        found = set()
        for file, text in texts.items():
            for condition, name in _TEST_FILE.findall(text):
                if "not(" not in condition and re.search(r"\b(test|loom)\b", condition):
                    found.add(module_path(file) + (name,))
        return found

    def _read(self, path, file, text):
        # innermost inline modules last, so that the last one that covers a position is the right one
        ranges = [(0, len(text), path)]
        for match in _MOD.finditer(text):
            outer = [r for r in ranges if r[0] <= match.start() < r[1]][-1]
            ranges.append((match.end(), block_end(text, match.end() - 1), outer[2] + (match.group(1),)))
        for _, _, module in ranges:
            self.modules[module] = Module(file)

        def module_at(position):
            if len(ranges) == 1:
                return self.modules[path]
            return self.modules[[r for r in ranges if r[0] <= position < r[1]][-1][2]]

        for match in _USE.finditer(text):
            module = module_at(match.start())
            for leaf, name, offset in use_tree(match.group(2)):
                line = line_of(text, match.start(2) + offset)
                module.uses.append((leaf, name, bool(match.group(1)), line))
                if name is None:
                    module.globs.append(leaf)
                else:
                    module.imported[name] = leaf
        rest = _USE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
        for match in _DEF.finditer(rest):
            module_at(match.start()).defined.add(match.group(1))
        for match in _PUBLIC.finditer(rest):
            module_at(match.start()).public.add(match.group(1))
        for match in _PATH.finditer(rest):
            module_at(match.start()).paths.append((match.group().split("::"), line_of(text, match.start())))
        for start, end, module in ranges:
            self.modules[module].words = set(re.findall(r"\w+", rest[start:end]))

    def resolve(self, here, path, depth=0):
        """Where a path of a module leads: ("module", path), ("item", path of its module), or None: another crate."""
        if depth > 8:
            return None
        first, rest = path[0], path[1:]
        if first == "crate":
            return self._walk((), rest, depth)
        if first == "self":
            return self._walk(here, rest, depth)
        if first == "super":
            while path and path[0] == "super":
                here, path = here[:-1], path[1:]
            return self._walk(here, path, depth)
        if here + (first,) in self.modules or first in self.modules[here].imported:
            if self.modules[here].imported.get(first, [None])[0] == first and here + (first,) not in self.modules:
                return None  # `use libc;`
            return self._walk(here, path, depth)
        return None

    def _walk(self, module, rest, depth):
        while rest:
            name, last = rest[0], len(rest) == 1
            known = self.modules[module]
            if module + (name,) in self.modules and not (last and name in known.defined):
                module, rest = module + (name,), rest[1:]
            elif name in known.imported:
                found = self.resolve(module, known.imported[name], depth + 1)
                if found is None or found[0] == "item":
                    return found
                module, rest = found[1], rest[1:]
            elif name in known.defined:
                return ("item", module)
            else:
                return self._by_glob(module, name, depth) or ("item", module)
        return ("module", module)

    def _by_glob(self, module, name, depth):
        for glob in self.modules[module].globs:
            found = self.resolve(module, glob, depth + 1)
            if found and found[0] == "module" and found[1] != module and name in self._names(module, found[1], set()):
                return self._walk(found[1], [name], depth + 1)
        return None

    def _names(self, here, module, seen):
        """What a glob import of a module brings into the module `here`: all of an ancestor, else what is public."""
        if module in seen:
            return set()
        seen.add(module)
        known = self.modules[module]
        private = here[:len(module)] == module
        names = set(known.defined if private else known.public)
        names |= {name for _, name, reexport, _ in known.uses if name and (reexport or private)}
        for path, name, reexport, _ in known.uses:
            found = self.resolve(module, path) if name is None and (reexport or private) else None
            if found and found[0] == "module":
                names |= self._names(here, found[1], seen)
        return names

    def edges(self):
        """{file: {file that it needs: (line, path)}}"""
        edges = {module.file: {} for module in self.modules.values()}

        def add(module, found, line, path):
            if found and found[0] == "item":
                target = self.modules[found[1]].file
                if target != module.file:
                    edges[module.file].setdefault(target, (line, "::".join(path)))

        for here, module in self.modules.items():
            for path, name, reexport, line in module.uses:
                found = self.resolve(here, path)
                if name is None and found and found[0] == "module":
                    for word in sorted(self._names(here, found[1], set()) & module.words):
                        add(module, self._walk(found[1], [word], 0), line, path + [word])
                elif name is not None and (not reexport or name in module.words):
                    add(module, found, line, path)
            for path, line in module.paths:
                add(module, self.resolve(here, path), line, path)
        return edges


def module_path(file):
    """The path of the module that a file under src/ is."""
    parts = file.removesuffix(".rs").split("/")
    if parts[-1] == "mod" or parts in (["lib"], ["main"]):
        parts = parts[:-1]
    return tuple(parts)


def folders(file, all_files):
    """The folders that a file belongs to."""
    path = pathlib.PurePath(file)
    inner = str(path.with_suffix(""))
    return {str(path.parent)} | ({inner} if any(f.startswith(inner + "/") for f in all_files) else set())


def components(edges):
    """Sets of files that all need one another, of more than one file (Tarjan)."""
    index, low, stack, on, found = {}, {}, [], set(), []
    sys.setrecursionlimit(10000)

    def visit(file):
        index[file] = low[file] = len(index)
        stack.append(file)
        on.add(file)
        for other in edges[file]:
            if other not in index:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in on:
                low[file] = min(low[file], index[other])
        if low[file] == index[file]:
            component = set()
            while file not in component:
                component.add(stack.pop())
            on.difference_update(component)
            if len(component) > 1:
                found.append(component)

    for file in edges:
        if file not in index:
            visit(file)
    return found


def shortest_cycle(edges, component, start):
    """The shortest way from a file back to it, as a list of files."""
    came, queue = {}, [start]
    for file in queue:
        for other in sorted(edges[file]):
            if other == start:
                way = [file]
                while way[-1] != start:
                    way.append(came[way[-1]])
                return way[::-1]
            if other in component and other not in came:
                came[other] = file
                queue.append(other)
    return [start]


def check(root, name):
    """Findings of a crate."""
    edges = Crate(root, name).edges()
    findings = []
    for component in components(edges):
        shared = set.intersection(*(folders(file, edges) for file in component))
        if shared and len(component) <= MOST:
            continue
        way = min((shortest_cycle(edges, component, file) for file in sorted(component)),
                  key=lambda way: (bool(set.intersection(*(folders(f, edges) for f in way))), len(way)))
        why = f"{len(component)} files of one folder" if shared else f"{len(component)} files of different folders"
        steps = " -> ".join(file.split("/src/")[1] for file in way + way[:1])
        line, path = edges[way[0]][way[1 % len(way)]]
        findings.append((way[0], line, f"import cycle of {why}: `{path}` closes {steps}"))
    return findings


def report(root, name):
    """Prints the cycles of a crate and the imports between folders in them."""
    edges = Crate(root, name).edges()
    found = sorted(components(edges), key=len, reverse=True)
    print(f"{name}: {len(edges)} files, cycles of {[len(c) for c in found]} files")
    for component in found:
        shared = set.intersection(*(folders(file, edges) for file in component))
        rule = "allowed" if shared and len(component) <= MOST else "FORBIDDEN"
        print(f"  {len(component)} files, {rule}: {' '.join(sorted(f.split('/src/')[1] for f in component))}")
        for file in sorted(component):
            for other, (line, path) in sorted(edges[file].items()):
                if other in component and (not folders(file, edges) & folders(other, edges) or shared):
                    print(f"    {file}:{line}: {path} ({other.split('/src/')[1]})")


def crates(root):
    """The crates of the workspace: all that have sources, but for workspaces of their own."""
    manifests = [pathlib.PurePath(name).parent for name in tracked(root, "/Cargo.toml")]
    return sorted(str(folder) for folder in manifests
                  if (root / folder / "src").is_dir() and "[workspace]" not in read(root, folder / "Cargo.toml"))


def check_all(root):
    """Findings of all crates."""
    names = crates(root)
    findings = [finding for name in names for finding in check(root, name)]
    cycles = sum(len(components(Crate(root, name).edges())) for name in names)
    if cycles > MOST_CYCLES:
        message = f"{cycles} import cycles (--report), at most {MOST_CYCLES} may be"
        findings.append(("scripts/check-cycles.py", 1, message))
    return findings


def main(arguments):
    if arguments[:1] == ["--report"]:
        for name in arguments[1:] or crates(ROOT):
            report(ROOT, name)
        return 0
    return finish("check-cycles", check_all(ROOT), f"no import cycle that is not allowed in {', '.join(crates(ROOT))}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
