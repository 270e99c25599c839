"""Runs a command and takes note at once of the end of every process that is orphaned below it:
`reaper.py COMMAND ARGS`.

Root restarts a program with its old ids, and waits for those of processes that were just killed until whoever inherited
them has taken note of their end. The init of a container or of a virtual machine may need a second or two for that, of
systemd a millisecond. Used by the Makefile for the end-to-end tests. Exit status: the command's.
"""

import ctypes
import os
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h


def main():
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        print("reaper: this kernel has no subreapers", file=sys.stderr)
    command = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
    # A terminal's signal goes to the command too, and its end is ours. The others are sent by orphans to their parent,
    # which they take for the one they had (stress-ng's do).
    for ignored in (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(command, signal.SIGTERM))
    while True:
        ended, status = os.wait()
        if ended == command:
            code = os.waitstatus_to_exitcode(status)
            sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
