#!/usr/bin/python3
"""Python's own test suite under Holdfast: each module plain, with a checkpoint every 100 ms, with one restart.

    python_suite.py HOLDFAST [--user root|user] [--jobs N] [--seed N] [--keep] [MODULE ...]

HOLDFAST: the folder with the binary and the library. Each test of a module has to end as it ended plain: passed,
failed or skipped. A form that differs is tried once more, beside a plain run: a test that differs there as well is
none of ours. A line per module and form; at the end the sums, and why there was no image. Status 1: a difference.
Needs Debian's package libpython3.11-testsuite; without it: SKIPPED, status 0. Called by `make support`.
"""
import collections
import random
import subprocess
import sys
import time
import xml.etree.ElementTree

from job import Job, outcomes, parsed, parser

PYTHON = "/usr/bin/python3"
# What talks to the kernel: signals, processes, sockets, files, mappings, threads, time.
MODULES = """
test_signal test_threadsignals test_faulthandler test_eintr test_file_eintr
test_os test_posix test_fork1 test_wait3 test_wait4 test_popen test_pty test_openpty test_ioctl test_fcntl
test_subprocess test_cmd_line test_cmd_line_script test_repl test_pipes test_resource test_atexit
test_socket test_socketserver test_asyncore test_asynchat test_ssl test_select test_selectors test_poll test_epoll
test_timeout test_ftplib test_httplib test_httpservers test_urllib2_localnet test_smtplib test_smtpd test_poplib
test_imaplib test_nntplib test_telnetlib test_xmlrpc test_docxmlrpc test_wsgiref test_syslog
test_asyncio
test_mmap test_io test_fileio test_file test_bufio test_tempfile test_threadedtempfile test_shutil
test_mailbox test_pathlib test_glob test_fileinput test_tarfile test_zipfile test_gzip test_bz2 test_lzma test_zlib
test_dbm test_dbm_dumb test_dbm_gnu test_dbm_ndbm test_shelve test_logging test_memoryview test_array test_buffer
test_multiprocessing_fork test_multiprocessing_forkserver test_multiprocessing_spawn
test_multiprocessing_main_handling test_concurrent_futures
test_threading test_thread test_threading_local test_queue test_sched test_time test_contextlib test_weakref
test_gc test_hashlib test_ctypes test_locale test_readline test_curses test_tracemalloc test_regrtest test_venv
test_generators test_decimal test_random test_statistics test_re test_json test_pickle test_struct test_float test_long
""".split()
EVERY = 0.1
# A form that takes so many times as long as the plain one, and a minute, has not come to its end.
PATIENCE = 10
TRIES = 6


class Run:
    """How one form went: results by test; None where there are none, with `why`."""

    def __init__(self, results=None, why="", job=None):
        self.results, self.why = results, why
        self.images = job.images if job else 0
        self.refused = dict(job.refused) if job else {}


def command(module):
    # Of the network only this host: others would look for one.
    network = ["-u", "network"] if module == "test_socketserver" else []
    return [PYTHON, "-m", "test", "-v", *network, "--junit-xml", "FOLDER/results.xml", module]


def results(job, status):
    """Each test's end by its name; the status of the run as one more."""
    tree = xml.etree.ElementTree.parse(f"{job.folder}/results.xml")
    found = {"the run": str(status)}
    for case in tree.iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("skipped", "failure", "error")]
        found[case.get("name")] = kinds[0] if kinds else "passed"
    return found


def finish(job, status):
    if status is None:
        return Run(why=f"not at its end after {job.limit:.0f} s", job=job)
    try:
        return Run(results(job, status), job=job)
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        return Run(why=f"status {status}, no results ({error}); {job.said().strip()[-300:]}", job=job)


def plain(_options, user, module, _took):
    job = Job("", user, command(module), 300)
    try:
        return finish(job, job.wait())
    finally:
        job.close()


def often(options, user, module, took):
    """A checkpoint every 100 ms, as long as one is not over later."""
    job = Job(options.holdfast, user, command(module), PATIENCE * took + 60)
    try:
        end = time.monotonic() + job.limit
        while job.front.poll() is None and time.monotonic() < end:
            begun = time.monotonic()
            job.checkpoint()
            time.sleep(max(0.0, begun + EVERY - time.monotonic()))
        return closing(options, job, finish(job, job.front.poll()))
    finally:
        job.close(keep=options.keep)


def restarted(options, user, module, took):
    """Ended with an image at a random moment (at the next one when that is refused), and restarted."""
    latest = 0.9
    for _ in range(TRIES):
        job = Job(options.holdfast, user, command(module), PATIENCE * took + 60)
        try:
            time.sleep(random.uniform(0.05, max(0.06, took * latest)))
            while job.front.poll() is None and not job.checkpoint("--stop"):
                time.sleep(0.05)
            status = job.wait()
            if job.images:
                job.restart()
                status = job.wait()
                return closing(options, job, finish(job, status))
            if job.refused:
                return closing(options, job, Run(why="no image", job=job))
        finally:
            job.close(keep=options.keep)
        latest /= 2
    return Run(why="it ends too soon")


def closing(options, job, run):
    if run.results is None and options.keep:
        run.why += f" [{job.folder}]"
    return run


def differences(one, other):
    names = sorted(one.keys() | other.keys())
    return [f"{name}: {one.get(name, 'missing')} -> {other.get(name, 'missing')}" for name in names
            if one.get(name) != other.get(name)]


def judge(options, user, module, form, base, took):
    """What a form gives: (word, run, differences)."""
    run = form(options, user, module, took)
    if run.results is None:
        return ("NO IMAGE" if run.why.startswith("no image") else "LOST"), run, [run.why]
    different = differences(base.results, run.results)
    if not different:
        return "equal", run, []
    # Tests that end in several ways are none of ours: what a second plain run and a second try have in common.
    again, second = plain(options, user, module, took), form(options, user, module, took)
    if again.results is None or second.results is None:
        return "DIFFERENT", run, different
    wavering = {line.split(":")[0] for line in differences(base.results, again.results)}
    still = [line for line in differences(base.results, second.results)
             if line in different and line.split(":")[0] not in wavering]
    return ("DIFFERENT", run, still) if still else ("equal at the second try", run, different)


def one_module(options, user, module):
    begun = time.monotonic()
    base = plain(options, user, module, 0)
    took = time.monotonic() - begun
    if base.results is None:
        return [(module, user, "plain", "not here", base, [base.why], took)]
    rows = []
    for name, form in (("often", often), ("restarted", restarted)):
        if name not in options.forms:
            continue
        word, run, lines = judge(options, user, module, form, base, took)
        rows.append((module, user, name, word, run, lines, took))
    return rows


def main():
    known = parser("MODULE")
    known.add_argument("--forms", nargs="*", default=["often", "restarted"])
    options = parsed(known)
    found = subprocess.run([PYTHON, "-c", "import test.test_os"], capture_output=True, check=False)
    if found.returncode != 0:
        print("SKIPPED: Python's test suite is not here (libpython3.11-testsuite)")
        return 0
    words, refused = collections.Counter(), collections.Counter()
    images = 0
    for rows in outcomes(options, one_module, options.names or MODULES):
        for module, user, form, word, run, lines, took in rows:
            words[form, word] += 1
            images += run.images
            count = len(run.results or {})
            print(f"| {module} | {user} | {form} | {word} | {count} tests, {took:.1f} s plain, "
                  f"{run.images} images, {sum(n for n, _ in run.refused.values())} refused |", flush=True)
            for line in lines[:8]:
                print(f"    {line}", flush=True)
            for number, why in run.refused.values():
                print(f"    refused {number}: {why}", flush=True)
                refused[why] += number
    for (form, word), count in sorted(words.items()):
        print(f"{form}: {word}: {count}")
    print(f"{images} images, {sum(refused.values())} refused")
    return 1 if any(word in ("DIFFERENT", "LOST") for _, word in words) else 0


if __name__ == "__main__":
    sys.exit(main())
