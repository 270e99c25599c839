"""What a Python program may say to Holdfast, and the jobs of a store.

    import holdfast

    if holdfast.checkpoint() == holdfast.RESTARTED:
        ...                            # here goes the restarted program, which has to open its connections again

No program needs this: `holdfast run -- python3 train.py` checkpoints unmodified programs. In a program that was not
started by `holdfast run` every function may be called: `loaded()` is False, and `checkpoint()` raises NoAgent.
"""

import ctypes
import itertools
import json
import os
import subprocess
import sys

__all__ = [
    "CHECKPOINTED", "RESTARTED", "CommandFailed", "Failed", "Image", "Job", "NoAgent", "Refused", "checkpoint", "job",
    "jobs", "loaded", "on_checkpoint", "on_restart", "protect", "restarted", "restore",
]

#: What `checkpoint` returns: the image is taken, and this is the program going on.
CHECKPOINTED = 0
#: Likewise: this is the restarted program.
RESTARTED = 1


class Failed(Exception):
    """There is no new image; older ones are intact. The agent's log says why."""


class NoAgent(Failed):
    """Nobody checkpoints this program: it was not started by `holdfast run`, or the agent has ended."""


class Refused(Failed):
    """The program holds something open that cannot be restored; `holdfast check` names it."""


class CommandFailed(Exception):
    """A command of holdfast has failed: its exit status and its message."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


# preload/include/holdfast.h
_ERRORS = {-1: NoAgent, -3: Refused}
_before, _after = [], []
# Arrays that were protected without a name.
_nameless = itertools.count(1)


def _function(name):
    return getattr(ctypes.CDLL(None), name, None)


def loaded():
    """Whether libholdfast.so is in this program: it was started by `holdfast run`."""
    return _function("holdfast_checkpoint") is not None


def on_checkpoint(callback):
    """Has `callback` called before each checkpoint that `checkpoint` takes. Usable as a decorator."""
    _before.append(callback)
    return callback


def on_restart(callback):
    """Has `callback` called in the restarted program, before `checkpoint` returns RESTARTED. Usable as a decorator."""
    _after.append(callback)
    return callback


def checkpoint(wait=True):
    """Takes an image of the whole program now. Returns CHECKPOINTED, or RESTARTED in the program that a restart of this
    image makes. `wait`: until the image is safe; else it is written behind the program's back.

    Raises NoAgent, Refused, or Failed."""
    call = _function("holdfast_checkpoint" if wait else "holdfast_checkpoint_start")
    if call is None:
        raise NoAgent("this program was not started by `holdfast run`")
    for callback in _before:
        callback()
    result = call()
    if result < 0:
        raise _ERRORS.get(result, Failed)("no checkpoint was taken (%d); the agent's log says why" % result)
    if result == RESTARTED:
        for callback in _after:
            callback()
    return result


def restarted():
    """How many restarts this process has behind it; 0 also where nobody checkpoints it."""
    call = _function("holdfast_restarted")
    return max(call(), 0) if call else 0


def protect(array, name=None):
    """A copy of a numpy array in memory that is flushed first, and that is all there is in an image of
    `holdfast run --only-protected`. Without libholdfast it is the array itself. `name`: for `restore`; without one
    arrays are called array-1, array-2 ... in the order in which they are protected."""
    import numpy

    call = _function("holdfast_malloc_protected")
    if name is None:
        name = "array-%d" % next(_nameless)
    if call is None or array.nbytes == 0:
        return array
    call.restype, call.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_size_t]
    address = call(name.encode(), array.nbytes)
    if not address:
        raise MemoryError("no protected memory %r of %d bytes" % (name, array.nbytes))
    memory = (ctypes.c_char * array.nbytes).from_address(address)
    protected = numpy.frombuffer(memory, dtype=array.dtype).reshape(array.shape)
    protected[...] = array
    return protected


def restore(array, name):
    """Fills an array that `protect` has made with what it had in the image, after a restart of `--only-protected`.
    Whether there was anything."""
    call = _function("holdfast_restore_protected")
    if call is None:
        return False
    call.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
    result = call(name.encode(), array.ctypes.data, array.nbytes)
    if result not in (0, -6, -7):
        raise Failed("region %r was not restored (%d)" % (name, result))
    return result == 0


def _binary():
    beside = os.path.join(sys.prefix, "bin", "holdfast")
    return beside if os.access(beside, os.X_OK) else "holdfast"


def _outside():
    """The environment without what makes a process one of the job that this program may be."""
    without = ("LD_PRELOAD", "HOLDFAST_SOCKET", "HOLDFAST_KEY", "HOLDFAST_MEMBER_SOCKET", "HOLDFAST_MEMBER_KEY")
    return {name: value for name, value in os.environ.items() if name not in without}


def _ask(*words, store=None):
    command = [_binary()] + (["--store", os.fspath(store)] if store else []) + list(words)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_outside())
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {}
    if answer.get("kind") == "error" or (done.returncode and not answer):
        raise CommandFailed(done.returncode, answer.get("message") or done.stderr.strip())
    return answer


class Image:
    """An image of a job. Its attributes are those of docs/json.md (`jobs[].images[]`)."""

    def __init__(self, job, fields, store=None):
        self.job = job
        self._store = store
        self.__dict__.update(fields)

    def __repr__(self):
        return "<holdfast.Image %s: %d bytes, %s>" % (self.name, self.bytes, self.created)

    @property
    def name(self):
        """As commands take it: JOB@N."""
        return "%s@%d" % (self.job, self.epoch)

    def show(self):
        """What it holds: what `holdfast show --json` says."""
        return _ask("show", self.name, "--json", store=self._store)

    def verify(self):
        """Whether every byte of it is as it was written."""
        return all(found["good"] for found in _ask("verify", self.name, "--json", store=self._store)["images"])


class Job:
    """A job of a store. Its attributes are those of docs/json.md, as they were when it was looked up; `images` are
    Image objects, the oldest first."""

    def __init__(self, fields, store=None):
        self._store = store
        self.__dict__.update(fields)
        self.images = [Image(self.job, image, store) for image in fields["images"]]

    def __repr__(self):
        return "<holdfast.Job %s: %s, %d images>" % (self.job, self.state, len(self.images))

    def refresh(self):
        """The same job as it is now."""
        return job(self.job, self._store)

    def checkpoint(self, stop=False):
        """Takes an image; `stop`: then ends the program. What `holdfast checkpoint --json` says."""
        return _ask("checkpoint", self.job, "--json", *(["--stop"] if stop else []), store=self._store)

    def check(self):
        """What could not be checkpointed of it now: what `holdfast check --json` says."""
        return _ask("check", self.job, "--json", store=self._store)

    def show(self):
        """What its newest image holds: what `holdfast show --json` says."""
        return _ask("show", self.job, "--json", store=self._store)


def jobs(store=None):
    """All jobs, the one with the newest image last."""
    return [Job(fields, store) for fields in _ask("list", "--json", store=store)["jobs"]]


def job(name=None, store=None):
    """The job of this name; without a name that of this program, or None where it has none."""
    if name is not None:
        return Job(_ask("list", name, "--json", store=store)["jobs"][0], store)
    socket = os.environ.get("HOLDFAST_SOCKET")
    if not socket:
        return None
    folder = os.path.dirname(socket)
    return job(os.path.basename(folder), os.path.dirname(folder))
