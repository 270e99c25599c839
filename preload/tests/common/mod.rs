//! What the tests share: the finished library, small C programs, and an agent that only listens.
//!
//! # Safety
//! Plain socket calls on descriptors that this file opened itself.
#![allow(unsafe_code, dead_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The library as users get it: release profile.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    LIBRARY.get_or_init(build).as_deref().expect("the library builds")
}

fn build() -> Option<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args(["rustc", "--release", "--locked", "-p", "holdfast-preload", "--lib"])
        .args(["--message-format", "json"])
        .args(["--", "-C", "panic=abort"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let path = text.split('"').find(|part| part.ends_with("/libholdfast.so"));
    path.filter(|_| output.status.success()).map(PathBuf::from)
}

/// A folder of its own, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("holdfast-preload-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// Compiles `tests/c/NAME.c`.
    pub fn compile(&self, name: &str, options: &[&str]) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = self.0.join(name);
        let status = Command::new("cc")
            .args(["-O1", "-w", "-pthread"])
            .arg("-I")
            .arg(root.join("include"))
            .arg("-o")
            .arg(&program)
            .arg(root.join(format!("tests/c/{name}.c")))
            .args(options)
            .status()
            .expect("cc runs");
        assert!(status.success(), "{name}.c does not compile");
        program
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `program` without anything of Holdfast in its environment.
pub fn plain(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.as_bytes().starts_with(b"HOLDFAST_") || name == "LD_PRELOAD" {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    // Whoever runs the tests may have left descriptors open.
    // SAFETY: between fork and exec only this one system call is made.
    unsafe {
        command.pre_exec(|| {
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    command
}

/// `program` with the library, and no agent.
pub fn alone(program: impl AsRef<OsStr>) -> Command {
    let mut command = plain(program);
    command.env("LD_PRELOAD", library()).env("HOLDFAST_NO_AGENT", "1");
    command
}

/// `program` with the library and a socket.
pub fn with_agent(program: impl AsRef<OsStr>, agent: &Agent) -> Command {
    let mut command = plain(program);
    command.env("LD_PRELOAD", library()).env("HOLDFAST_SOCKET", &agent.path);
    command
}

/// Runs it and returns what it printed; fails unless it succeeded in silence on standard error.
pub fn output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}: {stdout}{stderr}");
    assert_eq!(stderr, "");
    stdout.into_owned()
}

/// Something said to the agent.
pub struct Said {
    pub pid: i32,
    pub text: serde_json::Value,
    pub passed: Option<OwnedFd>,
    pub connection: OwnedFd,
}

impl Said {
    pub fn answer(&self, text: &str) {
        let fd = self.connection.as_raw_fd();
        // SAFETY: sends the bytes of `text`.
        let sent = unsafe { libc::send(fd, text.as_ptr().cast(), text.len(), libc::MSG_NOSIGNAL) };
        assert_eq!(sent, text.len() as isize);
    }
    pub fn event(&self) -> &str {
        self.text["event"].as_str().unwrap_or("")
    }
}

/// A listening socket.
pub struct Agent {
    pub path: PathBuf,
    listener: OwnedFd,
}

impl Drop for Agent {
    /// Nobody connects any more, though a child that another test has just forked has the socket until it executes.
    fn drop(&mut self) {
        // SAFETY: a socket of ours.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl Agent {
    /// Listens at `folder`/agent.sock, however long that path is.
    pub fn new(folder: &Path) -> Agent {
        std::fs::create_dir_all(folder).unwrap();
        let handle = std::fs::File::open(folder).unwrap();
        // SAFETY: makes a socket that is owned from here on.
        let listener = unsafe {
            OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0))
        };
        let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
        let short = format!("/proc/self/fd/{}/agent.sock", handle.as_raw_fd());
        for (place, byte) in address.sun_path.iter_mut().zip(short.bytes()) {
            *place = byte as libc::c_char;
        }
        let len = size_of::<libc::sockaddr_un>() as u32;
        // SAFETY: reads the address, which outlives the calls.
        let ready = unsafe {
            libc::bind(listener.as_raw_fd(), (&raw const address).cast(), len) == 0
                && libc::listen(listener.as_raw_fd(), 64) == 0
        };
        assert!(ready, "{}", std::io::Error::last_os_error());
        Agent { path: folder.join("agent.sock"), listener }
    }

    /// The next message, or `None` after `patience`.
    pub fn next_within(&self, patience: Duration) -> Option<Said> {
        wait_readable(&self.listener, patience).then(|| self.accept())
    }

    /// The next message; fails after ten seconds.
    pub fn next(&self) -> Said {
        self.next_within(Duration::from_secs(10)).expect("the program says something")
    }

    fn accept(&self) -> Said {
        // SAFETY: a new descriptor, owned from here on.
        let connection = unsafe {
            let fd = libc::accept4(
                self.listener.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_CLOEXEC,
            );
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd)
        };
        let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as u32;
        // SAFETY: writes one ucred.
        unsafe {
            libc::getsockopt(
                connection.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut who).cast(),
                &raw mut len,
            );
        }
        assert!(wait_readable(&connection, Duration::from_secs(5)), "connected and silent");
        let (text, passed) = receive(&connection);
        Said { pid: who.pid, text: serde_json::from_slice(&text).expect("JSON"), passed, connection }
    }
}

fn wait_readable(fd: &OwnedFd, patience: Duration) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut entry, 1, patience.as_millis() as i32) > 0 }
}

fn receive(fd: &OwnedFd) -> (Vec<u8>, Option<OwnedFd>) {
    let mut bytes = vec![0_u8; 65536];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = [0_u64; 8];
    // SAFETY: plain data, all zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: writes into the two buffers above.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    assert!(len >= 0, "{}", std::io::Error::last_os_error());
    bytes.truncate(len as usize);
    // SAFETY: the kernel has filled in the control messages.
    let passed = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (!header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS)
            .then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned()))
    };
    (bytes, passed)
}
