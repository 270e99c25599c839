#!/usr/bin/env python3
"""What a restart does outside the new process goes through one door, and docs/security.md has a row for each.

Why: root restarts processes that have become other users. Whatever opens, makes, gives away, signals or connects
something for them must do it as them, by descriptor, or judge it first. process/src/rebuild/paths/ does that for names;
what is done elsewhere is in BESIDE, with the reason why that is sound.

What counts are the calls of CALLS in the sources under FOLDER (not in tests, not in the door itself) and in FILES. Each
must be in BESIDE; what is in BESIDE must be there still; and the table under TABLE must have
- a row for each row that BESIDE names, by its first cell;
- every public function of the door in backticks in its last cell, but for PURE;
- no other row.

Run: scripts/check-effects.py             what `make check` does
     scripts/check-effects.py --report    the same, and exits with 0: for a look
"""
import re
import sys

from check_common import ROOT, code_only, finish, line_of, read, tracked, without_tests

FOLDER = "process/src/rebuild/"
DOOR = FOLDER + "paths/"
FILES = ["process/src/cuda/job_file.rs"]
# Unit tests' own; one that knows calls by their numbers, in other processes.
NOT = [FOLDER + "testing.rs", FOLDER + "members/tests.rs", FOLDER + "front/system_v_users.rs"]
DOCUMENT = "docs/security.md"
TABLE = "## What a restart does, and as whom"

CALLS = re.compile(
    r"""\b(?:File::(?:open|options|create|create_new)|OpenOptions::new|DirBuilder::new
      |fs::(?:write|copy|rename|remove_\w+|create_\w+|hard_link|set_permissions)
      |objects::open|at::\w+|l?chown(?=\()|fchown(?=\()|set_current_dir|fs_ids::\w+
      |socket::(?:bind|connect|listen|accept|new)|UnixDatagram::\w+|UnixListener::\w+
      |fd::send|scm::send\w*|ptrace::kill|signal_pidfd|queue_pidfd
      |terminal::(?:open_slave|take_control|set_foreground)|inotify::add
      |attributes::(?:set_limit|set_nice|set_scheduler|execute|mount_\w+|slave_mounts|join_group)
      |sched::set_\w+|clock::(?:set_affinity|move_ahead_at_exec)|ids::go_on_behind|choose_id::with_id
      |sysv_shm::(?:create|remove|set_mode|set_owner)|Attached::new|sysv_sem_msg::(?:set_values|empty|send)
      |kind\.(?:create|remove|set)|names::take
      |SYS_(?:openat2?|open|fcntl|flock|shmat|ioctl|kill|tgkill|rt_sigqueueinfo|rt_tgsigqueueinfo|sendmsg|connect|bind)
    )\b|\.(?:set_permissions|set_len|set_modified)\b""",
    re.VERBOSE,
)

# Row of the table: for each file under FOLDER (or of FILES) the calls, and why they may be beside the door.
BESIDE = [
    ("a file that the program maps is opened", "agent/address_space.rs", "SYS_openat SYS_openat2",
     "by the new process, without links; checked against the door before anything is mapped"),
    ("the root directory is changed", "agent/root.rs", "SYS_openat SYS_openat2",
     "by the new process, without links; checked against the door before it is entered"),
    ("files of /proc of the process are opened", "agent/landlock.rs", "File::options",
     "without links, to be told to the kernel in a rule of a domain"),
    ("content, length and owner of a file are put back", "agent/contents.rs", "at::reopen set_len set_permissions",
     "by the descriptor of the process that writes it, or acting as that process"),
    ("content, length and owner of a file are put back", "agent/regular.rs",
     "fchown set_len set_permissions",
     "by the descriptor of the process that writes it; owner and bits as that process could give them"),
    ("content, length and owner of a file are put back", "agent/unlinked.rs",
     "fchown set_modified set_permissions", "of files without a name, which the restart has made"),
    ("content, length and owner of a file are put back", "new_process/child.rs", "set_len",
     "of what the door has opened"),
    ("content, length and owner of a file are put back", "new_process/unlinked.rs", "objects::open set_len",
     "of files without a name, which the restart has made: by their descriptors"),
    ("content, length and owner of a file are put back", "new_process/regular.rs", "objects::open set_permissions",
     "of files without a name, by their descriptors; and of what is kept in the job's folder"),
    ("what would be lost is kept", "agent/saved_files.rs",
     "DirBuilder::new File::options at::link fs::remove_file set_len",
     "in the job's folder, where nobody else makes files"),
    ("what would be lost is kept", "agent/taken_files.rs", "File::open", "read from the job's folder"),
    ("an empty folder or a working folder is set up", "new_process/cwd.rs", "File::options set_permissions",
     "of the folder that the process is in, which the door has made"),
    ("an empty folder or a working folder is set up", "new_process/missing_folders.rs", "set_permissions",
     "of a folder that the door has made, acting as the process"),
    ("a named pipe, or a pipe, is opened again", "new_process/objects.rs", "at::reopen",
     "an end of a pipe that the door has opened, or that is new"),
    ("a unix socket is bound, and its file put where it was", "new_process/socket_files.rs",
     "socket::bind socket::connect socket::new",
     "acting as the process; the kernel takes a path, not a descriptor"),
    ("a socket is made, bound and listens", "socket_addresses.rs", "socket::bind",
     "an address of the network or an abstract name, on a socket of whom it was"),
    ("a socket is made, bound and listens", "members/mod.rs",
     "socket::accept socket::bind socket::connect socket::listen socket::new",
     "made as its maker, at addresses of the network; who connects to it proves that it has the other image"),
    ("messages that waited are sent again", "members/exchange.rs", "fd::send",
     "what waited at the other end of a TCP connection, which has sent it here first"),
    ("a socket is made, bound and listens", "new_process/sockets.rs",
     "socket::bind socket::connect socket::listen",
     "made as its maker, by the ids that the other end is told; connected as the process"),
    ("a socket is made, bound and listens", "new_process/networks.rs", "socket::new",
     "in the network namespace that it was of"),
    ("a socket is made, bound and listens", "socket_setup.rs", "fs_ids::with_effective",
     "made as its maker, by the ids that the other end is told"),
    ("a socket is made, bound and listens", "new_process/accepted.rs", "socket::accept",
     "what others have connected to it is closed"),
    ("a socket is made, bound and listens", "new_process/unsettled.rs", "socket::listen", "made as its maker"),
    ("a socket is made, bound and listens", "new_process/datagrams.rs", "socket::bind",
     "netlink, whose addresses and groups the kernel gives; a nameless one, to send from"),
    ("messages that waited are sent again", "new_process/datagrams.rs", "scm::send_along",
     "said to be of their senders"),
    ("messages that waited are sent again", "new_process/flight.rs", "objects::open scm::send_along",
     "said to be of their senders; /dev/null with them in place of what is closed"),
    ("messages that waited are sent again", "new_process/socket_buffers.rs", "scm::send_along",
     "said to be of their senders"),
    ("message queues are made and filled", "agent/queues.rs", "at::reopen", "by the descriptor of the process"),
    ("message queues are made and filled", "new_process/queues.rs", "at::reopen",
     "acting as the process; the kernel takes a name, and is asked whose it is"),
    ("messages that waited are sent again", "new_process/urgent.rs", "fd::send",
     "from one end of a stream to the other, which is told of no senders"),
    ("who gets the signals of a file is set", "agent/owners.rs", "SYS_fcntl",
     "by a process with the ids of who had set it; processes of the job only"),
    ("a file is locked", "agent/process_state.rs", "SYS_fcntl SYS_flock",
     "by the process, on its own descriptors"),
    ("a descriptor is inherited by programs again (rollback)", "agent/in_place/state.rs", "SYS_fcntl",
     "by the process, on its own descriptors"),
    ("a watch of inotify is added", "inotify.rs", "at::open_without_links inotify::add",
     "on the very file that was watched, else acting as the process"),
    ("a watch of inotify is added", "new_process/files.rs", "inotify::add", "calls that"),
    ("System V objects are made, filled and removed", "agent/ipc.rs",
     "choose_id::with_id kind.create kind.remove kind.set names::take sysv_sem_msg::empty sysv_sem_msg::send "
     "sysv_sem_msg::set_values", "found by id and key, and judged by them"),
    ("System V objects are made, filled and removed", "agent/sysv_shm.rs",
     "Attached::new SYS_shmat choose_id::with_id sysv_shm::create sysv_shm::remove sysv_shm::set_mode "
     "sysv_shm::set_owner", "owner and creator are judged"),
    ("the next id is chosen", "agent/choose_id.rs", "fs::write", "of System V objects; taken back if it fails"),
    ("the next id is chosen", "front/last_pid.rs", "ids::go_on_behind", "of processes; only ahead"),
    ("the next id is chosen", "new_process/pid_namespaces.rs", "ids::go_on_behind", "in a pid namespace that is new"),
    ("the restart's own descriptors, messages and namespaces", "new_process/pid_namespaces.rs", "File::open",
     "namespaces of its own processes in /proc"),
    ("the new process is signalled", "agent/job_control.rs", "ptrace::kill", "a traced process: its id is its own"),
    ("the new process is signalled", "agent/process_state.rs", "SYS_rt_sigqueueinfo", "by itself, to itself"),
    ("the new process is signalled", "agent/resume.rs", "ptrace::kill", "a traced process: its id is its own"),
    ("the new process is signalled", "agent/threads.rs", "SYS_rt_tgsigqueueinfo", "by itself, to itself"),
    ("the new process is signalled", "front/spawn.rs", "queue_pidfd signal_pidfd", "by its descriptor"),
    ("the new process is signalled", "new_process/fork_tree.rs", "ptrace::kill", "by itself, to itself"),
    ("limits, priorities and settings of the process are set", "agent/process_state.rs",
     "SYS_ioctl attributes::set_limit attributes::set_nice attributes::set_scheduler clock::set_affinity fs::write "
     "sched::set_deadline sched::set_io_priority sched::set_turn_ns",
     "a traced process: its id is its own; what the record has"),
    ("limits, priorities and settings of the process are set", "agent/aio.rs", "clock::set_affinity",
     "a traced thread: its id is its own; for a moment, one of the processors that it has"),
    ("limits, priorities and settings of the process are set", "new_process/files.rs", "attributes::set_limit",
     "its own"),
    ("limits, priorities and settings of the process are set", "new_process/fork_tree.rs",
     "attributes::join_group attributes::set_limit fs::write", "its own; a group of its own session"),
    ("files of /proc of the process are opened", "agent/proc_files.rs", "SYS_open",
     "of the process itself, or of one of the job"),
    ("a terminal is made", "new_process/terminals.rs",
     "objects::open terminal::open_slave terminal::set_foreground terminal::take_control",
     "a new one, by its master"),
    ("a terminal is made", "new_process/front_terminal.rs", "objects::open terminal::set_foreground",
     "/dev/tty; the terminal of the front, which is in its foreground, to a group of the same session"),
    ("the executable is executed", "new_process/child.rs", "attributes::execute",
     "by the descriptor of the door; nothing of it runs before the process has its ids"),
    ("the restart's own descriptors, messages and namespaces", "agent/passed_files.rs",
     "SYS_connect scm::send_many",
     "over a pair of sockets, or to the agent's own, where the new process is looked for"),
    ("the restart's own descriptors, messages and namespaces", "agent/seize.rs", "fd::send", "over a pair of sockets"),
    ("the restart's own descriptors, messages and namespaces", "handshake.rs", "scm::send scm::send_many",
     "over a pair of sockets"),
    ("the restart's own descriptors, messages and namespaces", "new_process/child.rs",
     "clock::move_ahead_at_exec objects::open scm::send",
     "its own time namespace; the folder that it is in; a pair of sockets"),
    ("the restart's own descriptors, messages and namespaces", "new_process/files.rs", "objects::open", "/dev/null"),
    ("a mount namespace is made and filled", "new_process/mounts.rs",
     "File::options at::make_fifo_at at::open_without_links at::remove at::set_written fs::create_dir "
     "fs::create_dir_all fs::hard_link fs::set_permissions fs::write lchown set_current_dir set_len",
     "in file systems that are new, in a namespace that is new; what is a part of the job's the door has opened"),
    ("a mount namespace is made and filled", "new_process/files.rs", "at::open_within",
     "in a file system that the restart has made, below its root"),
    ("a mount namespace is made and filled", "new_process/namespaces.rs", "File::options at::enter",
     "the root of one that is new; a folder that the door has opened"),
    ("the restart's own descriptors, messages and namespaces", "new_process/namespaces.rs", "File::open fs::write",
     "files of /proc of a process that it has made for that and that is its own child"),
    ("the restart's own descriptors, messages and namespaces", "new_process/shared_memory.rs",
     "File::open set_len set_permissions", "/dev/urandom; files in memory that are new"),
    ("the restart's own descriptors, messages and namespaces", "front/namespace.rs",
     "attributes::mount_proc attributes::slave_mounts set_current_dir", "namespaces that are new"),
    ("the restart's own descriptors, messages and namespaces", "front/id_maps.rs", "fs::write fs_ids::groups",
     "of a user namespace that is new"),
    ("the job file of CUDA is written", "process/src/cuda/job_file.rs", "OpenOptions::new set_len set_permissions",
     "in the place of the door, acting as the process; opened by name only to be read, for an image"),
]

# Functions of the door that do nothing to what is outside.
PURE = "of c_path explain ids is_of_root named folder look find mode_of here is_same judge new_name".split()


def calls(root):
    """{(file, call): line} of all that is beside the door."""
    found = {}
    for name in tracked(root, ".rs"):
        is_beside = name.startswith(FOLDER) and not name.startswith(DOOR) and name not in NOT
        if not is_beside and name not in FILES:
            continue
        code = without_tests(code_only(read(root, name)))
        code = re.sub(r"(?m)^\s*(?:pub(?:\([^)]*\))?\s+)?use [^;]*;", lambda m: re.sub(r"[^\n]", " ", m.group()), code)
        for match in CALLS.finditer(code):
            key = (name.removeprefix(FOLDER), match.group().lstrip("."))
            found.setdefault(key, line_of(code, match.start()))
    return found


def door(root):
    """{function: (file, line)} of the public functions of the door."""
    found = {}
    for name in tracked(root, ".rs"):
        if name.startswith(DOOR):
            code = without_tests(code_only(read(root, name)))
            for match in re.finditer(r"\bpub fn (\w+)", code):
                found[match.group(1)] = (name, line_of(code, match.start()))
    return found


def table(document):
    """{first cell: (line, functions in the last)} of the table under TABLE."""
    rows, inside = {}, False
    for number, line in enumerate(document.split("\n"), 1):
        if line.startswith("## "):
            inside = line == TABLE
        elif inside and line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not set(cells[0]) <= set("-: "):
                rows[cells[0]] = (number, re.findall(r"`(\w+)`", cells[-1]))
    return dict(list(rows.items())[1:])


def check(root, beside=None, pure=None):
    """Findings."""
    beside, pure = BESIDE if beside is None else beside, PURE if pure is None else pure
    allowed = {(file, call): row for row, file, names, _ in beside for call in names.split()}
    found, rows, doors = calls(root), table(read(root, DOCUMENT)), door(root)
    findings = []
    for (file, call), line in sorted(found.items()):
        if (file, call) not in allowed:
            where = file if file in FILES else FOLDER + file
            findings.append((where, line, f"{call} past {DOOR}: do it there, or say in BESIDE why it is sound"))
    for file, call in sorted(set(allowed) - set(found)):
        findings.append(("scripts/check-effects.py", 1, f"BESIDE has {call} of {file}, which is not there"))
    for row in sorted({row for row in allowed.values()} - set(rows)):
        findings.append((DOCUMENT, 1, f"the table has no row '{row}'"))
    named = {name for _, names in rows.values() for name in names}
    for name, (file, line) in sorted(doors.items()):
        if name not in named and name not in pure:
            findings.append((file, line, f"the table of {DOCUMENT} does not name `{name}`"))
    for row, (line, names) in rows.items():
        if row not in allowed.values() and not set(names) & set(doors):
            findings.append((DOCUMENT, line, f"nothing does what the row '{row}' says"))
        for name in sorted(set(names) - set(doors)):
            findings.append((DOCUMENT, line, f"the door has no function `{name}`"))
    return findings


if __name__ == "__main__":
    status = finish("check-effects", check(ROOT), "all effects of a restart are in the table")
    sys.exit(0 if sys.argv[1:] == ["--report"] else status)
