#!/usr/bin/env python3
"""Every dependency that a Cargo.toml names is used: by a member's sources, or, in the workspace's list, by a member.

Why: what is not used is compiled, licensed and kept up to date for nothing.

A dependency counts as used when a source of the crate has its name as a word of the code (`rayon::scope`, `use libc`,
`#[derive(thiserror::Error)]`): those of src/ for [dependencies], those of tests/, benches/ and examples/ as well for
[dev-dependencies], build.rs for [build-dependencies]. (cargo-machete does the same; it takes a minute to install.)

Run: scripts/check-unused.py
"""
import re
import sys

from check_common import ROOT, code_only, finish, read, tracked

# (crate's folder, dependency, why it has to be there though no source names it)
EXCEPTIONS = [
    ("tiers", "reqwest", "chooses the TLS of the client inside object_store, which is named nowhere else"),
    ("tiers", "num-traits", "has the features that the tests ask of it: nothing is compiled twice"),
    ("preload", "cc", "has the features that zstd-sys asks of it: jemalloc is compiled once"),
    ("cuda-hooks", "holdfast-stand-in", "tests load it by its file; linked with them its symbols clash"),
]


def dependencies(manifest):
    """(section, name, line) of each dependency that the text of a Cargo.toml names."""
    section = ""
    for number, line in enumerate(manifest.split("\n"), 1):
        header = re.match(r"\[(.*)\]", line)
        if header:
            table = re.match(r"(.*dependencies)\.([\w-]+)$", header.group(1))
            section = table.group(1) if table else header.group(1)
            if table:
                yield section, table.group(2), number
                section = ""
        elif section.endswith("dependencies") and (name := re.match(r'"?([\w-]+)"?\s*[.=]', line)):
            yield section, name.group(1), number


def sources(root, crate, section):
    """The code that may use the dependencies of a section."""
    folders = ("src/",)
    if section.endswith("dev-dependencies"):
        folders = ("src/", "tests/", "benches/", "examples/")
    elif section.endswith("build-dependencies"):
        folders = ("build.rs",)
    if crate == "fuzz":
        folders = ("fuzz_targets/",)
    wanted = tuple(f"{crate}/{folder}" for folder in folders)
    return " ".join(code_only(read(root, file)) for file in tracked(root, ".rs") if file.startswith(wanted))


def check(root):
    """Findings."""
    findings, named = [], set()
    for manifest in tracked(root, "/Cargo.toml"):
        crate = manifest.removesuffix("/Cargo.toml")
        code = {}
        for section, name, line in dependencies(read(root, manifest)):
            named.add(name)
            if section not in code:
                code[section] = set(re.findall(r"\w+", sources(root, crate, section)))
            known = any((c, n) == (crate, name) for c, n, _ in EXCEPTIONS)
            if name.replace("-", "_") not in code[section] and not known:
                findings.append((manifest, line, f"{name} is used by no source of {crate} ({section})"))
    for section, name, line in dependencies(read(root, "Cargo.toml")):
        if name not in named:
            findings.append(("Cargo.toml", line, f"{name} is used by no member of the workspace"))
    return findings


if __name__ == "__main__":
    sys.exit(finish("check-unused", check(ROOT), "every dependency is used"))
