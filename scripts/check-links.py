#!/usr/bin/env python3
"""Every link and every path of a file that documents and comments name leads somewhere.

Why: files are moved and renamed; a text that cites what is not there sends its reader astray.

Looked at are
- links `[text](target)` of all *.md files: the file exists, and has the heading of the #anchor;
- paths of files in backticks in *.md, and plain or in backticks in the comments of the sources and scripts.
A path may be given from the root, from the file's own folder, or by its last parts (`stop/resume.rs`); the last alone
will do for *.rs and *.md. `*` and CAPITALS mean any name. Paths that begin with / or ~ are not looked at, nor those in
CHANGELOG.md, which are of times past.

Run: scripts/check-links.py             what `make check` does
     scripts/check-links.py --report    the same, and exits with 0: for a look
"""
import fnmatch
import os
import re
import sys

from check_common import ROOT, comments, finish, read, tracked

# What comments cite of the kernel, of glibc, systemd, SSSD and lz4, and the headers of the system.
NOT_OURS = re.compile(
    r"(arch|block|drivers|fs|include|io_uring|ipc|kernel|lib|mm|net|security|uapi|Documentation)/"
    r"|lz4_Block_format\.md|(dlfcn|elf|malloc|nptl|nscd|posix|sysdeps)/|src/(basic|sss_client|util)/|(asm-generic|asm|linux|sys)/\w+\.h$"
)
# What a path of the repository ends in.
_ENDING = r"(?:rs|md|c|h|py|sh|js|toml)"
_TOKEN = re.compile(rf"(?<![\w./~$<>{{}}*-])((?:[\w.*-]+/)+[\w.*-]+\.{_ENDING})(?![\w/])")
_BARE = re.compile(r"(?<![\w./-])[\w-]+\.(?:rs|md)\b(?!/)")
_QUOTED = re.compile(rf"`((?:[\w.*-]+/)*[\w.*-]+\.{_ENDING})`")
_LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")


def anchors(text):
    """The anchors of the headings of a Markdown text, as GitHub makes them."""
    found, fenced = set(), False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        heading = re.match(r"#+\s+(.*)", line)
        if heading and not fenced:
            plain = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).lower())
            anchor = base = plain.strip().replace(" ", "-")
            number = 0
            while anchor in found:
                number += 1
                anchor = f"{base}-{number}"
            found.add(anchor)
    return found


class Tree:
    """The files of the repository, to be found by the ways in which texts name them."""

    def __init__(self, root):
        self.root = root
        self.files = tracked(root)
        self.known = set(self.files)
        for file in self.files:  # folders too
            while file := os.path.dirname(file):
                self.known.add(file)
        self.tails = {}
        for file in self.files:
            parts = file.split("/")
            for i in range(len(parts)):
                self.tails.setdefault("/".join(parts[i:]), file)

    def has(self, path, source):
        """Whether a path that a file names is there."""
        path = path.rstrip("/")
        nearby = os.path.normpath(os.path.join(os.path.dirname(source), path))
        if path in self.known or nearby in self.known or path in self.tails:
            return True
        path = re.sub(r"\b[A-Z]+\b", "*", path)
        if "*" in path:
            return any(fnmatch.fnmatch(tail, path) for tail in self.tails)
        return False


def links(tree, file, text):
    """Findings about the links of a Markdown text."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        fenced ^= line.lstrip().startswith("```")
        for target in [] if fenced else _LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z+]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = os.path.normpath(os.path.join(os.path.dirname(file), path)) if path else file
            if there not in tree.known and there != ".":
                yield file, number, f"link to {target}: there is no {there}"
            elif anchor and there.endswith(".md") and anchor not in anchors(read(tree.root, there)):
                yield file, number, f"link to {target}: {there} has no heading of that anchor"


def paths(tree, file, lines):
    """Findings about the paths that lines of text name."""
    for number, line in lines:
        for path in sorted(set(_TOKEN.findall(line)) | set(_QUOTED.findall(line)) | set(_BARE.findall(line))):
            ours = "/" in path or path.endswith((".rs", ".md"))
            if ours and not NOT_OURS.match(path) and not tree.has(path, file):
                yield file, number, f"names {path}, which is not there"


def check(root):
    """Findings."""
    tree, findings = Tree(root), []
    for file in tree.files:
        if file.endswith(".md") and file != "CHANGELOG.md":
            text = read(root, file)
            findings += links(tree, file, text)
            quoted = ((n, " ".join(f"`{q}`" for q in re.findall(r"`([^`]+)`", line)))
                      for n, line in enumerate(text.split("\n"), 1))
            findings += paths(tree, file, quoted)
        elif file.endswith((".rs", ".c", ".h")):
            findings += paths(tree, file, comments(read(root, file)))
        elif file == "scripts/test_checks.py":
            continue  # its strings are files of the repositories that it makes
        elif file.endswith((".py", ".sh", ".toml", "Makefile")):
            lines = enumerate(read(root, file).split("\n"), 1)
            findings += paths(tree, file, ((n, line[line.index("#"):]) for n, line in lines if "#" in line))
    return findings


if __name__ == "__main__":
    status = finish("check-links", check(ROOT), "every link and every path that texts name is there")
    sys.exit(0 if sys.argv[1:] == ["--report"] else status)
