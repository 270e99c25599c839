#!/usr/bin/env python3
"""Folders of the binary keep to their bounds: which of them may use which, and by which files they are entered.

Why: agent, keeper, callers of the CUDA driver and fronts are processes of their own, which know one another by messages
alone. One that calls a function of another one's would run the code of another process.

How: the imports that `check-cycles.py` finds. TABLE has a row for each folder of cli/src that is a process: what it
may use of the other folders in it, and the files that others may use of it. What is not in the table (top-level files,
`args/`, `settings/`, `html/`) is everybody's, and uses none of them; `main.rs` starts them all.

Run: scripts/check-folders.py
"""
import importlib.util
import pathlib
import sys

from check_common import ROOT, finish

CRATE = "cli"
MAIN = "main.rs"
# Folder: (the others that it may use, the files by which it is entered).
TABLE = {
    "agent": (["cuda", "keeper", "rsh"], ["mod.rs"]),
    "front": ([], ["environment.rs", "locate.rs", "patience.rs", "restart.rs", "restart_request.rs", "run.rs",
                   "supervise.rs", "wait_for_lock.rs"]),
    "keeper": (["cuda"], ["client.rs", "messages.rs", "packer.rs", "probe.rs", "process.rs"]),
    "cuda": ([], ["caller.rs", "client.rs", "driver.rs", "messages.rs", "mod.rs", "room.rs"]),
    "rsh": (["front"], ["client.rs", "launchers.rs", "line.rs", "server.rs"]),
    "serve": ([], ["mod.rs", "ranks.rs"]),
    "commands": (["cuda", "front", "keeper", "rsh", "serve"], None),
}
# (file, file, why): imports that may be all the same.
BESIDE = [
    ("args/images.rs", "commands/copies.rs", "options of several commands, with what they mean"),
    ("args/images.rs", "commands/places.rs", "options of several commands, with what they mean"),
]


def cycles():
    """check-cycles.py as a module: its name has a hyphen."""
    path = pathlib.Path(__file__).resolve().parent / "check-cycles.py"
    spec = importlib.util.spec_from_file_location("check_cycles", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrong(file, other, table, beside):
    """Why a file may not use another one; both as below src/."""
    mine, theirs = (path.split("/")[0] if "/" in path else "" for path in (file, other))
    if theirs not in table or mine == theirs or file == MAIN or (file, other) in beside:
        return None
    may = table[mine][0] if mine in table else []
    if theirs not in may:
        what = f"{mine}/" if mine in table else "what is everybody's"
        return f"{what} may use of these folders: {', '.join(may) or 'none'}"
    doors = table[theirs][1]
    if doors is not None and other.split("/", 1)[1] not in doors:
        return f"{theirs}/ is entered by {', '.join(doors)} alone"
    return None


def check(root, table, beside):
    """Findings."""
    findings, used = [], set()
    for file, others in cycles().Crate(root, CRATE).edges().items():
        for other, (line, path) in sorted(others.items()):
            pair = tuple(name.split("/src/")[1] for name in (file, other))
            used.add(pair)
            if why := wrong(*pair, table, [known[:2] for known in beside]):
                findings.append((file, line, f"`{path}` ({pair[1]}): {why}"))
    for file, other, _ in beside:
        if (file, other) not in used:
            findings.append(("scripts/check-folders.py", 1, f"BESIDE has {file} -> {other}, which is not there"))
    return findings


if __name__ == "__main__":
    sys.exit(finish("check-folders", check(ROOT, TABLE, BESIDE), f"folders of {CRATE} keep to their bounds"))
