#!/usr/bin/python3
"""A new user's first hour, in a minute: what the README says, word for word, and what they press and open meanwhile.

    first_steps.py README installed|asked
        installed   shells find their completions where the package has put them
        asked       they are told: eval "$(holdfast completions bash)"

Runs where Holdfast was just installed, with it in PATH (tests/chroot/enter, tests/tests/e2e/clean_debian.rs). Prints
what it does; ends with a traceback at the first thing that is not as it should be.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

PATIENCE = 120


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
                          stdin=subprocess.DEVNULL, **more)
    print("$ " + " ".join(command), done.stdout, sep="\n", flush=True)
    return done


def blocks(readme):
    """The fenced texts of the README, by what is in them."""
    fenced = re.findall(r"^```\n(.*?)^```", readme, re.S | re.M)
    program = next(block for block in fenced if "cat >count.py" in block)
    session = next(block for block in fenced if block.startswith("$ "))
    return program, session


def first_success(readme):
    """The program of the README, and the session in the other terminal, with the pid of here."""
    program, session = blocks(readme)
    # A pipe is as a terminal to Holdfast: a restart goes on in its own. A file would be put back, with a note.
    front = subprocess.Popen(["bash", "-ec", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
    before = [front.stdout.readline() for _ in range(3)]
    pid = None
    for said in re.split(r"^\$ ", session, flags=re.M)[1:]:
        command, _, shown = said.partition("\n")
        command = command.split("#")[0].strip()
        if command.startswith("kill"):
            command = re.sub(r"\d+$", str(pid), command)
        done = run(["bash", "-c", command])
        assert done.returncode == 0, command
        if command.endswith("list"):
            columns, listed = (line.split() for line in done.stdout.splitlines()[:2])
            assert listed[0] == "count" and listed[1] == "running", listed
            pid = int(listed[columns.index("PID")])
        same_kind(command, shown, done.stdout)
    # bash has become holdfast run, which dies as the program has.
    assert front.wait(PATIENCE) == -signal.SIGKILL, front.returncode
    print("before the kill:", *before, front.stdout.read())


def same_kind(command, shown, said):
    """What the README shows of a command, but for its figures, and for where a restart goes on."""
    if "restart" in command:
        numbers = said.split()
        first = next(at for at, word in enumerate(numbers) if word.isdigit() and at > 5)
        wanted = [str(n) for n in range(int(numbers[first]), 13)] + ["done"]
        assert numbers[first:] == wanted, said
        said, shown = said.splitlines()[0], shown.splitlines()[0]
    plain = lambda text: re.sub(r"[ \d.]+", " ", re.sub(r"\b([KM]iB|m?s|B)\b", "", text)).split()
    assert plain(shown) == plain(said), (plain(shown), plain(said))


def manual_opens():
    for page, words in (("holdfast", "Checkpoint running programs"), ("holdfast-restart", "Restart a program from")):
        done = run(["man", page], env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "100"})
        assert done.returncode == 0 and words in done.stdout, page
        # Examples line by line, as they are typed.
        assert re.search(r"^ +holdfast restart sim( +\(.*)?$", done.stdout, re.M), page


SHELLS = {
    # What /etc/skel/.bashrc does, and what everybody has in .zshrc.
    "bash": (["bash", "--norc", "-i"], ". /usr/share/bash-completion/bash_completion"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D -u"),
}


def typed(shell, line, wanted, asked):
    """A shell at a terminal makes `wanted` of a line at whose end somebody presses the tabulator."""
    words, setup = SHELLS[shell]
    if asked:
        setup += '; eval "$(holdfast completions %s)"' % shell
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(words[0], words)
    said = b""

    def until(word):
        nonlocal said
        end = time.monotonic() + PATIENCE
        while word not in said:
            assert time.monotonic() < end, (line, said)
            if select.select([terminal], [], [], 1)[0]:
                said += os.read(terminal, 4096)

    os.write(terminal, setup.encode() + b"; echo be''gin\n")
    until(b"begin")
    os.write(terminal, line.encode() + b"\t")
    until(wanted.encode())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(terminal)
    print("%s: %s[TAB]: %s" % (shell, line, wanted), flush=True)


def completes(asked):
    """The name of the job, in the default store and in one that the line names."""
    default, other = os.path.expanduser("~/.local/state/holdfast"), os.path.expanduser("~/other")
    for store in ("", " --store " + other, " --store=" + other):
        if store:
            os.renames(default, other)
        line = "holdfast%s restart cou" % store
        for shell in SHELLS:
            typed(shell, line, "restart count", asked)
        setup = "holdfast completions fish | source; " if asked else ""
        done = run(["fish", "-c", "%scomplete --do-complete '%s'" % (setup, line)])
        assert done.stdout.split() == ["count"], done.stdout
        if store:
            os.renames(other, default)


def main():
    readme, asked = open(sys.argv[1]).read(), sys.argv[2] == "asked"
    assert run(["holdfast", "doctor"]).returncode == 0
    start = time.monotonic()
    first_success(readme)
    print("the README's first success took %.1f s" % (time.monotonic() - start))
    jobs = json.loads(run(["holdfast", "list", "--json"]).stdout)["jobs"]
    assert [job["job"] for job in jobs] == ["count"], jobs
    manual_opens()
    completes(asked)
    print("PASS")


if __name__ == "__main__":
    main()
