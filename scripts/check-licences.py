#!/usr/bin/env python3
"""Every package that is built in has a licence of deny.toml's list and comes from crates.io (or is one of ours).

Why: who passes the program on has to know under what; and a package from elsewhere can change without notice.

Reads `cargo metadata` of the workspace, of fuzz/ and of tests/s3/, for the one platform there is. Packages in two
versions are named, which is no error. The same list serves cargo-deny (`make deny`), which knows the advisories
besides, but takes minutes to install and needs the network.

Run: scripts/check-licences.py
"""
import json
import os
import re
import subprocess
import sys

from check_common import ROOT, finish, read

CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def allowed(root):
    """The licences that deny.toml allows."""
    text = "\n".join(re.sub(r"#.*", "", line) for line in read(root, "deny.toml").split("\n"))
    return set(re.findall(r'"([^"]+)"', re.search(r"\nallow = \[(.*?)\]", text, re.DOTALL).group(1)))


def fits(expression, licences):
    """Whether an SPDX expression (or the older A/B) can be met with these licences."""
    tokens = re.findall(r"\(|\)|[\w.+-]+", expression.replace("/", " OR "))

    def either():
        value = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            value = both() or value
        return value

    def both():
        value = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = one() and value
        return value

    def one():
        name = tokens.pop(0)
        if name == "(":
            value = either()
            tokens.pop(0)
            return value
        if tokens and tokens[0] == "WITH":
            tokens.pop(0)
            name += " WITH " + tokens.pop(0)
        return name in licences

    return either()


def metadata(root, manifest):
    """The packages of a workspace, as cargo tells them."""
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--format-version", "1", "--locked",
               "--filter-platform", "x86_64-unknown-linux-gnu", "--manifest-path", str(root / manifest)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["packages"]


def check(packages, licences, lock):
    """Findings about packages, in whose lock file they are."""
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if package["source"] not in (None, CRATES_IO):
            yield lock, 1, f"{name} comes from {package['source']}, not from crates.io"
        if not package["license"]:
            yield lock, 1, f"{name} names no licence"
        elif not fits(package["license"], licences):
            yield lock, 1, f"{name}: licence {package['license']} is not in the list of deny.toml"


def main():
    findings, versions, licences = [], {}, allowed(ROOT)
    for folder in ("", "fuzz/", "tests/s3/"):
        packages = metadata(ROOT, f"{folder}Cargo.toml")
        findings += check(packages, licences, f"{folder}Cargo.lock")
        for package in packages if folder == "" else []:
            versions.setdefault(package["name"], []).append(package["version"])
    twice = [f"{name} {' and '.join(found)}" for name, found in versions.items() if len(found) > 1]
    note = f" (in two versions: {', '.join(twice)})" if twice else ""
    clean = f"{len(versions)} packages, all of allowed licences and of crates.io{note}"
    return finish("check-licences", findings, clean)


if __name__ == "__main__":
    sys.exit(main())
