//! What a checkpoint refuses by name: the list, and how each line is tried.
//!
//! One list for all who try it: `tests/e2e/refusals.rs` makes its tests of it by [`refused!`](crate::refused), and
//! the conformance run (`bin/support.rs`) reads it as [`REFUSED`]. `refused KIND` (`programs/refused.c` and its
//! relatives) holds the thing and counts; the checkpoint must fail with 69 and say all the words, and the program
//! must end as if nothing was.

use crate::apps::{App, NOT_HERE, PYTHON};
use crate::sandbox::{Bed, PATIENCE, STAY, User, shell_code, wait};
use crate::segments;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Exit status of what is refused.
pub const STATUS: i32 = 69;

/// One thing that is refused.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// Name of its test.
    pub name: &'static str,
    /// What it is, in plain words.
    pub feature: &'static str,
    /// C program, its kind, its rounds of 100 ms, and what it needs from outside: a port (`@tcp`), a key
    /// (`@segment`), a path (`@unix`, `@terminal`, `@pipe`), or that RLIMIT_NOFILE is low (`@limit`).
    pub arguments: &'static [&'static str],
    /// All of this is in the refusal; `@tcp` and the like stand for the same as among the arguments.
    pub words: &'static [&'static str],
    /// Who is refused; the other one is not.
    pub whom: &'static [User],
}

/// How a try went.
pub enum Outcome {
    /// As it should; the refusal's first line.
    Refused(String),
    /// This machine or this user cannot have the thing at all; why.
    NotHere(String),
}

/// Hands the list to a macro: lines `NAME: PROGRAM ARGUMENTS => FEATURE, refused WORDS [, only USER];`.
#[macro_export]
macro_rules! refused {
    ($use:ident) => {
        $use! {
            tcp_connection_to_the_outside: "refused" "tcp" "15" "@tcp" =>
                "A TCP connection to the outside (without --outside close)",
                refused "fd 9" "TCP connection 127.0.0.1:" "-> 127.0.0.1:@tcp leads outside the job" "--outside close";
            unix_connection_to_the_outside: "refused" "unix" "15" "@unix" => "A unix connection to the outside",
                refused "fd 9" "unix connection to @unix leads outside the job" "--outside close";
            packet_socket: "refused" "packet" "15" => "A packet socket with a ring (PACKET_RX_RING)",
                refused "fd 9" "ring in memory" "not supported";
            terminal_with_unread_output: "refused" "pty" "60" =>
                "A pseudo-terminal whose slave is closed, with output that was not read yet",
                refused "fd 9 (/dev/ptmx)" "6 bytes" "try again";
            memfd_with_too_much_content: "refused" "memfd" "15" => "A memfd of more than 64 MiB that is not mapped",
                refused "fd 9 (/memfd:large (deleted))" "65 MiB" "the limit is 64";
            inotify_with_unread_events: "refused" "inotify" "60" => "inotify events that were not read yet",
                refused "fd 9" "inotify" "try again";
            io_uring: "refused" "io_uring" "15" => "A ring of io_uring that was made past the C library",
                refused "fd 9" "io_uring" "UV_USE_IO_URING=0";
            shared_mapping_of_a_kernel_object: "refused" "mapping" "15" =>
                "Linux AIO (io_setup), made past the C library and libaio",
                refused "mapping 0x" "Linux AIO" "--aio off";
            pages_without_an_address: "refused" "hidden" "15" =>
                "Pages of shared memory that remap_file_pages(2) has left without an address",
                refused "mapping 0x" "remap_file_pages" "memfd";
            shared_file_too_large_for_a_stop: "refused" "large" "15" =>
                "More than 1 GiB of a file that is mapped shared",
                refused "mapping 0x" "1025 MiB of a file that is mapped shared" "map less of it at once";
            more_files_than_a_restart_can_make: "held" "many_files" "15" "@limit" =>
                "More open files, in all processes together, than a restart can make under RLIMIT_NOFILE",
                refused "process" "needs RLIMIT_NOFILE" "hard limit is 300" "ulimit -Hn", only Ordinary;
            namespace_that_it_has_left: "refused" "namespace" "15" => "A namespace that it is not in, open",
                refused "fd 9" "uts:[" "not its own", only Root;
            seccomp_filter_before_exec: "filters" "executed" "60" =>
                "A program that was executed under a seccomp filter of the job's own",
                refused "seccomp filters of its own" "before it has executed its program", only Ordinary;
            seccomp_filter_that_forbids_calls: "filters" "narrow" "60" =>
                "A seccomp filter that forbids what a checkpoint calls",
                refused "thread" "its seccomp filter 1 forbids sigaltstack", only Ordinary;
            socket_in_a_mount_namespace: "confined" "socket_file" "45" =>
                "A socket in a file system that only a mount namespace of its own has",
                refused "process" "a socket at" "in its mount namespace alone";
            pid_namespace_in_another: "confined" "deep" "45" =>
                "A child in a pid namespace within one of its parent",
                refused "process" "pid namespace within one";
            pid_namespace: "confined" "pid" "45" => "A pid namespace for its children that has no process yet",
                refused "process" "left the namespaces of its job" "pid";
            time_namespace: "confined" "time" "45" => "A time namespace for its children",
                refused "process" "left the namespaces of its job" "time";
            socket_of_a_left_network_namespace: "confined" "socket" "45" =>
                "A socket of a network namespace that all have left",
                refused "fd " "network namespace in which no process of the job is";
            objects_in_an_ipc_namespace: "held" "own_objects" "15" =>
                "System V objects in an ipc namespace of its own",
                refused "process" "System V objects in its ipc namespace";
            user_namespace_in_another: "confined" "nested" "45" =>
                "A child in a user namespace within one of its parent",
                refused "process" "user namespace and in one below that";
            namespace_of_a_thread: "confined" "thread_uts" "45" => "A thread in a uts namespace of its own",
                refused "thread" "left the namespaces of its job (uts)", only Root;
            landlock_domain: "confined" "landlock" "45" => "A Landlock domain with a scope",
                refused "process" "Landlock domain" "with a scope" "start `holdfast run` inside";
            landlock_domain_past_the_c_library: "held" "domain" "15" =>
                "A Landlock domain made past the C library (Go)",
                refused "process" "Landlock domain";
            landlock_domain_of_a_thread: "held" "domain_of_thread" "15" => "A Landlock domain of one thread",
                refused "thread" "Landlock domain";
            code_of_32_bits: "held" "narrow_code" "60" => "A thread in 32-bit code of a 64-bit program",
                refused "thread" "32-bit or 16-bit code" "try again";
            seccomp_strict_mode_of_a_thread: "confined" "thread_strict" "45" =>
                "Seccomp's strict mode, of one thread",
                refused "thread" "seccomp's strict mode", only Ordinary;
            descriptors_of_two_processes: "confined" "child_files" "60" =>
                "Descriptors shared with a child (clone CLONE_FILES)",
                refused "process" "shares its descriptors" "CLONE_FILES";
            // The agent waits a few seconds for it to speak.
            child_of_32_bits: "refused" "stranger" "60" => "A 32-bit child",
                refused "process" "(refused.small): is a 32-bit program";
            segment_that_is_attached_outside: "refused" "segment" "60" "@segment" =>
                "System V shared memory that somebody outside the job has attached",
                refused "System V shared memory" "is attached outside the job too" "SYSV";
            file_that_is_only_called_deleted: "odd_names" "deleted" "45" =>
                "A file whose name ends in ` (deleted)`, as /proc writes those of deleted files",
                refused "(deleted)" "its name ends as /proc writes" "rename it";
            guard_in_shared_memory: "refused" "guard" "15" => "A guard region in shared memory",
                refused "guard region at 0x" "shared memory";
            // Root may look all the same.
            process_that_forbids_to_look_at_it: "refused" "undumpable" "15" =>
                "PR_SET_DUMPABLE 0, for an ordinary user",
                refused "process" "PR_SET_DUMPABLE", only Ordinary;
            files_of_a_thread: "unshared" "files" "45" => "A thread with descriptors of its own (unshare CLONE_FILES)",
                refused "thread" "CLONE_FILES";
            deleted_program: "origin" "deleted" "60" => "A program whose file was deleted",
                refused "executable" "origin.copy" "deleted";
            program_in_a_memfd: "origin" "memfd" "60" => "A program in a memfd", refused "executable" "/memfd:origin";
            huge_file: "held" "huge_file" "15" => "A memfd of huge pages", refused "fd 9" "huge pages";
            file_that_is_mapped_elsewhere: "held" "elsewhere" "60" =>
                "A shared mapping of a file in another mount namespace",
                refused "mapping 0x" "/file" "another mount namespace", only Root;
            file_that_is_open_elsewhere: "held" "open_elsewhere" "60" => "An open file in another mount namespace",
                refused "fd 9" "/file" "not found at its path", only Root;
            // Root may go everywhere.
            file_in_a_closed_folder: "held" "closed_folder" "60" =>
                "An open file whose folder may not be searched any more",
                refused "fd 9" "held.closed/file" "not found at its path" "let its folder be searched", only Ordinary;
            secret_memory: "held" "secret" "15" => "Secret memory (memfd_secret)", refused "fd 9" "secret memory";
            filter_of_ebpf: "held" "bpf_filter" "15" => "A socket with a filter of eBPF (SO_ATTACH_BPF)",
                refused "fd 9" "eBPF", only Root;
            device: "held" "device" "15" => "Devices other than null, zero, full, random and urandom",
                refused "fd 9 (/dev/kmsg)" "device", only Root;
            terminal_of_others: "held" "terminal" "15" "@terminal" =>
                "A terminal whose master is outside, not a standard stream",
                refused "fd 9 (@terminal)" "terminal";
            pipe_of_others: "held" "pipe" "15" "@pipe" => "A pipe whose other end is outside, not a standard stream",
                refused "fd 9 (pipe:" "outside the program";
            // Root finds every path.
            watched_elsewhere: "held" "watch" "15" "/usr/share/doc" =>
                "inotify past the C library on what an ordinary user's agent does not find",
                refused "fd 9" "whose path cannot be found", only Ordinary;
            process_outside: "held" "process" "15" => "A pidfd of a process outside the job",
                refused "fd 9" "leads to process";
            userfaultfd: "held" "faults" "15" => "userfaultfd", refused "fd 9 (anon_inode:[userfaultfd])";
            perf_event: "held" "counter" "15" => "perf_event_open", refused "fd 9 (anon_inode:[perf_event])";
            counter_memory: "held" "counter_memory" "15" => "Memory of a device, and what the kernel maps like that",
                refused "mapping 0x" "memory of a device";
            ring_memory: "held" "ring_memory" "15" => "A private mapping of a kernel object",
                refused "mapping 0x" "private mapping of a kernel object";
            shadow_stack: "held" "shadow_stack" "15" => "A shadow stack (map_shadow_stack)",
                refused "mapping 0x" "shadow stack";
            many_semaphores: "held" "sets" "15" => "More than 126 System V semaphore sets, or message queues",
                refused "process" "semaphore sets";
            semaphore_to_be_undone: "ipc" "undo" "300" => "SEM_UNDO with something to undo at the end of a process",
                refused "process" "it holds System V semaphore 0 of set" "SEM_UNDO" "try again";
            wait_to_be_undone: "ipc" "undo_waiting" "300" => "A wait for a System V semaphore with SEM_UNDO",
                refused "process" "it waits for a System V semaphore with SEM_UNDO";
            bpf: "held" "bpf" "15" => "BPF maps", refused "fd 9 (anon_inode:bpf-map)";
            fanotify: "held" "fanotify" "15" => "fanotify", refused "fd 9 (anon_inode:[fanotify])";
            landlock: "held" "rules" "15" => "Landlock rule sets", refused "fd 9 (anon_inode:[landlock-ruleset])";
            netlink_of_other_kinds: "held" "kernel_socket" "15" =>
                "Netlink sockets of other kinds (NETLINK_GENERIC, netfilter, xfrm)",
                refused "fd 9" "netlink socket of NETLINK_GENERIC" "not supported" "close it";
            netlink_with_messages: "held" "kernel_answer" "60" => "Netlink messages that were not read yet",
                refused "fd 9" "netlink" "try again";
            multipath_tcp: "held" "multipath" "15" => "Multipath TCP", refused "fd 9" "not supported";
            machine_socket: "held" "machine" "15" => "Sockets of AF_VSOCK", refused "fd 9" "address family 40";
            empty_datagram: "held" "empty_datagram" "60" => "An empty unix datagram that was not read yet",
                refused "fd 9" "empty message";
            descriptor_in_flight: "held" "handing_timer" "60" =>
                "A timer in a message that was not read yet (timerfd, its only descriptor)",
                refused "fd 9" "[timerfd], a descriptor in a message in it" "try again";
            pair_with_one_name: "held" "half_named" "15" => "A datagram pair of which one end has a name",
                refused "a socket without a name";
            byte_out_of_band_with_credentials: "held" "urgent" "60" =>
                "A byte out of band that waits in a unix stream with SO_PASSCRED",
                refused "fd 9" "MSG_OOB" "try again";
            shut_before_it_was_connected: "held" "shut" "15" =>
                "A unix connection of which one end was shut down before it was connected",
                refused "fd 9" "before it was connected";
            name_of_a_file: "held" "name" "15" => "A unix socket whose name is that of a file by now",
                refused "fd 9" "held.socket" "no socket" "rename that file";
            folder_of_an_ended_process: "held" "dead_folder" "60" =>
                "A working folder in /proc, of a process that has ended",
                refused "process" "its working folder is in /proc" "change its folder";
            folder_of_a_child: "held" "folder_of_child" "60" => "A working folder in /proc, of a child",
                refused "process" "its working folder is in /proc" "change its folder";
            offset_for_peeking: "held" "peeking" "15" => "SO_PEEK_OFF with data that waits, of TCP",
                refused "fd 9" "SO_PEEK_OFF";
            semaphores_without_libholdfast: "ipc-static" "semaphores" "45" =>
                "System V semaphores in a statically linked program",
                refused "process" "it uses System V" "without libholdfast";
            messages_without_libholdfast: "ipc-static" "messages" "45" =>
                "System V message queues in a statically linked program",
                refused "process" "it uses System V" "without libholdfast";
            message_queue: "ipc" "queue" "45" => "A POSIX message queue with mq_notify",
                refused "fd " "POSIX message queue of which a process wants to be told" "mq_notify";
            dispatched_calls: "personal" "dispatch" "45" => "PR_SET_SYSCALL_USER_DISPATCH",
                refused "thread " "dispatched";
            keys_of_a_process: "personal" "process_keys" "45" => "Keys of a process (KEY_SPEC_PROCESS_KEYRING)",
                refused "process " "process keyring";
            keys_of_a_thread: "personal" "thread_keys" "45" => "Keys of a thread (KEY_SPEC_THREAD_KEYRING)",
                refused "thread " "thread keyring";
            traced: "held" "traced" "15" => "A program that somebody traces", refused "traced by process";
        }
    };
}

macro_rules! list {
    ($($name:ident: $($argument:literal)* => $feature:literal, refused $($word:literal)* $(, only $user:ident)?;)*) => {
        /// All that is tried.
        pub const REFUSED: &[Refused] = &[$(Refused {
            name: stringify!($name),
            feature: $feature,
            arguments: &[$($argument),*],
            words: &[$($word),*],
            whom: list!(@whom $($user)?),
        }),*];
    };
    (@whom) => { &[User::Root, User::Ordinary] };
    (@whom $user:ident) => { &[User::$user] };
}
refused!(list);

/// The line of that name.
pub fn entry(name: &str) -> Option<&'static Refused> {
    REFUSED.iter().find(|entry| entry.name == name)
}

/// What lives outside the job as long as it is tried.
struct Outside {
    tcp: TcpListener,
    _unix: UnixListener,
    path: String,
    /// Processes that hold a terminal and a pipe, each with what it tells of it.
    helpers: Vec<(Child, String)>,
    segment: Option<segments::Outside>,
}

impl Outside {
    fn new(bed: &Bed) -> Result<Outside> {
        let path = bed.dir().join("outside");
        let _unix = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        let path = path.to_string_lossy().into_owned();
        Ok(Outside {
            tcp: TcpListener::bind("127.0.0.1:0")?,
            _unix,
            path,
            helpers: Vec::new(),
            segment: None,
        })
    }

    fn expand(&mut self, bed: &Bed, word: &str) -> Result<String> {
        const TERMINAL: &str =
            "import os, time; m, s = os.openpty(); print(os.ttyname(s), flush=True); time.sleep(60)";
        const PIPE: &str = "import os, time; r, w = os.pipe(); \
            print(f'/proc/{os.getpid()}/fd/{r}', flush=True); time.sleep(60)";
        for (name, script) in [("@terminal", TERMINAL), ("@pipe", PIPE)] {
            if word.contains(name) {
                return Ok(word.replace(name, &self.helper(bed, script)?));
            }
        }
        if word == "@segment" {
            let segment = self.segment.insert(segments::Outside::start(0)?);
            return Ok(segment.key().to_owned());
        }
        Ok(word.replace("@tcp", &self.tcp.local_addr()?.port().to_string()).replace("@unix", &self.path))
    }

    /// The line that a helper tells; it is started when it is asked for first. It is not of the bed: its end is not
    /// waited for.
    fn helper(&mut self, bed: &Bed, script: &str) -> Result<String> {
        if self.helpers.is_empty() {
            let mut command = bed.command(Path::new(PYTHON));
            command.env_remove("HOME").env_remove("HOLDFAST_STORE").current_dir("/");
            let mut child = command.args(["-c", script]).stdout(Stdio::piped()).spawn()?;
            let mut line = String::new();
            BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
            self.helpers.push((child, line.trim().to_owned()));
        }
        Ok(self.helpers[0].1.clone())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        for (child, _) in &mut self.helpers {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// [`Bed::staying_command`] where no process may have 300 descriptors.
fn limited_command(bed: &Bed, job: &str, program: &[&str]) -> Result<Command> {
    let mut command = bed.command(Path::new("prlimit"));
    command
        .arg("--nofile=300:300")
        .arg(bed.kit().holdfast())
        .args(["run", "--name", job, "--"])
        .args(program);
    command.stdout(bed.create("out")?).stderr(bed.create("err")?).env(STAY, bed.stay_file());
    Ok(command)
}

/// One try as the user of the bed.
///
/// # Errors
/// It was not refused, in other words, or the program noticed.
pub fn refuse(entry: &Refused, bed: &Bed) -> Result<Outcome> {
    const JOB: &str = "r";
    let mut outside = Outside::new(bed)?;
    let arguments: Vec<String> =
        entry.arguments.iter().map(|word| outside.expand(bed, word)).collect::<Result<_>>()?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (program, arguments) = arguments.split_first().context("a program")?;
    let app = App::program(program, arguments);
    let words = app.words();
    let confined = *program == "confined";
    // In another root directory there is nothing to wait for.
    let mut command = match confined {
        true => bed.run_command(JOB, &[], &words)?,
        false if entry.arguments.contains(&"@limit") => limited_command(bed, JOB, &words)?,
        false => bed.staying_command(JOB, &[], &words)?,
    };
    let mut front = command.spawn()?;
    if bed.wait_live(JOB, &mut front)?.is_none() && shell_code(front.wait()?) == NOT_HERE {
        return Ok(Outcome::NotHere(bed.text("out").trim().to_owned()));
    }
    bed.until("the first line", PATIENCE, || bed.text("out").contains("round 1"))?;
    let ended = bed.say(&["checkpoint", JOB])?;
    ensure!(ended.code() == STATUS, "checkpoint: status {}: {}", ended.code(), ended.stderr);
    // Of the others some are told only by a stopped program.
    let checked = if confined { Some(bed.say(&["check", JOB])?) } else { None };
    for word in entry.words {
        let word = outside.expand(bed, word)?;
        ensure!(ended.stderr.contains(&word), "{word:?} is not in {:?}", ended.stderr);
        if let Some(checked) = &checked {
            let (code, text) = (checked.code(), &checked.stdout);
            ensure!(
                code == STATUS && text.contains(&word),
                "check: status {code}, {word:?} is not in {text:?}"
            );
        }
    }
    ensure!(bed.images(JOB).is_empty(), "an image was made");
    bed.may_end()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {}", bed.text("out"));
    let numbers = arguments.iter().filter_map(|word| word.parse::<usize>().ok());
    let rounds = numbers.min().context("the number of rounds")?;
    ensure!(bed.text("out").lines().count() == rounds + 1, "lines are missing: {}", bed.text("out"));
    bed.check_clean(JOB)?;
    Ok(Outcome::Refused(ended.stderr.lines().next().unwrap_or_default().to_owned()))
}
