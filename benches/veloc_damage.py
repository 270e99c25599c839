#!/usr/bin/env python3
"""What VELOC's own library and ours restart from after one line of damage: files of the newest version that are gone,
cut, changed or empty, of one rank, on one of two tiers or on both.

As veloc.py, which says how VELOC is to be built; here both have a scratch and a persistent folder. Prints a Markdown
table: the version that was restarted, of which the bits are compared with those of an undisturbed run; or how it
failed.

Run: VELOC=PREFIX [RANKS=2 MB=4] benches/veloc_damage.py   (after `make build`)
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("RANKS", "2")
os.environ.setdefault("MB", "4")
os.environ.setdefault("PERIOD", "50")
import veloc  # noqa: E402

LAST = 5


def remove(file):
    file.unlink()


def cut(file):
    os.truncate(file, file.stat().st_size // 2)


def change(file):
    with open(file, "r+b") as out:
        out.seek(file.stat().st_size // 2 // 4096 * 4096)
        out.write(b"\xa5" * 4096)


def empty(file):
    os.truncate(file, 0)


CASES = [
    ("nothing", None, []),
    ("gone, on both tiers", remove, ["scratch", "persistent"]),
    ("gone in scratch", remove, ["scratch"]),
    ("cut in scratch", cut, ["scratch"]),
    ("4 KiB changed in scratch", change, ["scratch"]),
    ("4 KiB changed, on both tiers", change, ["scratch", "persistent"]),
    ("empty in persistent, gone in scratch", empty, ["persistent"]),
]


class Veloc(veloc.Veloc):
    def __init__(self, folder, prefix, checks):
        super().__init__(folder, prefix)
        self.name = f"VELOC, chksum = {checks}"
        self.checks = checks
        self.configure(f"scratch = {self.memory}\npersistent = {self.disk}\nchksum = {checks}\n"
                       f"meta = {self.disk}\n")

    def files(self, tier):
        folder = {"scratch": self.memory, "persistent": self.disk}[tier]
        return [folder / f"plate-0-{LAST}.dat"]

    def rest(self):
        """It has written all when the program has waited."""


class Holdfast(veloc.Holdfast):
    def __init__(self, folder):
        super().__init__(folder)
        self.name = "Holdfast"
        self.lower = folder / "lower"
        self.configure(f"scratch = {self.disk}\npersistent = {self.lower}\n")

    def forget(self):
        super().forget()
        shutil.rmtree(self.lower, ignore_errors=True)

    def files(self, tier):
        """Of the newest image of rank 0: what has its data; where it is to go as a whole, its manifest as well."""
        folder = {"scratch": self.disk / "objects/plate/0", "persistent": self.lower}[tier]
        found = [file for file in folder.rglob("*") if re.fullmatch(r"(manifest|segment)-\d+(-\d+)?", file.name)]
        found = [file for file in found if tier == "scratch" or "/0/" in str(file.relative_to(self.lower))]
        number = lambda file: int(file.name.split("-")[1])
        newest = max(number(file) for file in found if file.name.startswith("manifest"))
        return [file for file in found if number(file) == newest]

    def rest(self):
        self.leave_memory()


def damage(library, how, tiers, name):
    for tier in tiers:
        for file in library.files(tier):
            # A manifest is not data: where it is not gone it stays as it is.
            if how is remove or not file.name.startswith("manifest"):
                how(file)
    if name.startswith("empty"):
        for file in library.files("scratch"):
            file.unlink()


def outcome(library, sums):
    environment = dict(os.environ, LD_LIBRARY_PATH=str(library.path), HOLDFAST_BIN=str(veloc.RELEASE / "holdfast"))
    environment["VELOC_BIN"] = str(library.path.parent / "bin")
    command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", veloc.RANKS, library.program]
    command += [veloc.MB, "0", veloc.PERIOD, library.configuration]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "does not end"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return "aborts"
    restart = veloc.json.loads(lines[-1])
    right = restart["sum"] == sums.get(restart["version"])
    return f"version {restart['version']}" if right else f"**version {restart['version']} with other bits**"


def main():
    prefix = os.environ.get("VELOC")
    if not prefix:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="bench-veloc-", dir=os.environ.get("TMPDIR", "/var/tmp")) as top:
        folders = [pathlib.Path(top) / name for name in ("true", "false", "ours")]
        for folder in folders:
            folder.mkdir()
        libraries = [Veloc(folders[0], pathlib.Path(prefix), "true"), Veloc(folders[1], pathlib.Path(prefix), "false"),
                     Holdfast(folders[2])]
        rows = {name: [] for name, _, _ in CASES}
        for library in libraries:
            sums = {}
            for name, how, tiers in CASES:
                library.forget()
                library.begin()
                if not sums:
                    for version in (LAST - 1, LAST):
                        sums[version] = library.run(str(version))["sum"]
                        library.rest()
                        library.forget()
                library.run(str(LAST))
                library.rest()
                if how:
                    damage(library, how, tiers, name)
                rows[name].append(outcome(library, sums))
                library.rest()
                library.end()
        for library in libraries:
            shutil.rmtree(library.memory, ignore_errors=True)
    names = " | ".join(library.name for library in libraries)
    print(f"| newest file of rank 0, of {veloc.RANKS}; {LAST} versions | {names} |")
    print("| --- " * (1 + len(libraries)) + "|")
    for name, outcomes in rows.items():
        print(f"| {name} |", " | ".join(outcomes), "|")


if __name__ == "__main__":
    main()
