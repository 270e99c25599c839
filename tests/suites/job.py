"""A program under `holdfast run` for the suites that others wrote: checkpoints, an end with an image, a restart.

Used by python_suite.py and stressors.py. Each job has a folder of its own: store, temporary files, output. As the
ordinary user everything runs without capabilities. Whatever a job leaves alive is ended with its session.
"""
import argparse
import atexit
import concurrent.futures
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time

ORDINARY = 1000
USERS = ("root", "user")
# Refused, since the program has ended meanwhile.
ENDED = ("is not running", "has just ended", "no job", "ended before")
# What keeps the messages apart from numbers that differ from run to run: sockets, processes, addresses.
DIGITS = str.maketrans("", "", "0123456789")


def kit(release):
    """A copy of the binary and the library that everybody may read."""
    folder = tempfile.mkdtemp(prefix="holdfast-kit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("holdfast", "libholdfast.so"):
        shutil.copy(os.path.join(release, name), folder)
    os.chmod(folder, 0o755)
    return folder


def parser(names):
    """What both suites take."""
    made = argparse.ArgumentParser()
    made.add_argument("holdfast")
    made.add_argument("--user", choices=USERS, action="append")
    made.add_argument("--jobs", type=int, default=2)
    made.add_argument("--seed", type=int, default=None)
    made.add_argument("--keep", action="store_true", help="keep the folders of those that fail")
    made.add_argument("names", nargs="*", metavar=names)
    return made


def parsed(made):
    """The words of the command line. The binary and the library are copied."""
    given = made.parse_intermixed_args()
    random.seed(given.seed)
    given.holdfast = kit(given.holdfast)
    return given


def outcomes(given, work, names):
    """What `work(options, user, name)` returns for each user and name, as they are done."""
    tasks = [(user, name) for name in names for user in given.user or USERS]
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(work, given, *task) for task in tasks]):
            yield done.result()


class Job:
    """One run of a command as one user. `holdfast`: folder with the binary and its library; "" for a plain run."""

    def __init__(self, holdfast, user, command, limit):
        self.folder = tempfile.mkdtemp(prefix="holdfast-suite-")
        self.holdfast = holdfast
        self.limit = limit
        self.front = None
        self.sessions = []
        self.images = 0
        self.refused = {}
        self.lower = []
        if user != "root":
            self.lower = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups",
                          "--bounding-set=-all", "--inh-caps=-all"]
            os.chown(self.folder, ORDINARY, ORDINARY)
        os.chmod(self.folder, 0o755)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
        self.environment.update(HOME=self.folder, TMPDIR=self.folder, HOLDFAST_STORE=f"{self.folder}/store",
                                PATH="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        command = [word.replace("FOLDER", self.folder) for word in command]
        if holdfast:
            command = [f"{holdfast}/holdfast", "run", "--name", "job", "--keep", "3", "--", *command]
        self.start(command)

    def start(self, command):
        with open(f"{self.folder}/output", "ab") as output:
            self.front = subprocess.Popen([*self.lower, *command], stdin=subprocess.DEVNULL, stdout=output,
                                          stderr=output, env=self.environment, cwd=self.folder,
                                          start_new_session=True, restore_signals=True)
        self.sessions.append(self.front.pid)

    def ask(self, *words):
        command = [*self.lower, f"{self.holdfast}/holdfast", *words]
        try:
            return subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=self.folder,
                                  timeout=self.limit, check=False)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"no answer in {self.limit} s")

    def checkpoint(self, *words):
        """Whether there is an image; else why not, counted in `refused`."""
        done = self.ask("checkpoint", *words, "job")
        if done.returncode == 0:
            self.images += 1
            return True
        if self.front.poll() is None and not any(words in done.stderr for words in ENDED):
            why = (done.stderr.strip().splitlines() or ["status %d" % done.returncode])
            why = " / ".join(line.strip() for line in why)
            key = why.translate(DIGITS)
            count, first = self.refused.get(key, (0, why))
            self.refused[key] = (count + 1, first)
        return False

    def restart(self):
        self.start([f"{self.holdfast}/holdfast", "restart", "job"])

    def wait(self):
        """The exit status; None past the limit, when everything is ended."""
        try:
            return self.front.wait(self.limit)
        except subprocess.TimeoutExpired:
            return None

    def said(self):
        with open(f"{self.folder}/output", errors="replace") as output:
            return output.read()

    def close(self, keep=False):
        """Ends what is alive of the job: in its sessions, or with its folder as HOME; some write over their HOME."""
        if self.front.poll() is None:
            self.front.kill()
            self.front.wait()
        mark = f"HOME={self.folder}".encode()
        for _ in range(3):
            all_pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
            left = [pid for pid in all_pids if session_of(pid) in self.sessions or has_mark(pid, mark)]
            for pid in left:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not left:
                break
            time.sleep(0.1)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def session_of(pid):
    try:
        return os.getsid(int(pid))
    except ProcessLookupError:
        return None


def has_mark(pid, mark):
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return mark in environ.read().split(b"\0")
    except OSError:
        return False
