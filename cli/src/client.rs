//! The commands' side of the agent's control socket.

use crate::exit::{Exit, Failure};
use crate::pidfile;
use holdfast_image::control::{JobStatus, MAX_MESSAGE, Reply, Request};
use holdfast_sys::procfs::{self, Existence};
use holdfast_sys::{fd, poll, unix_socket};
use holdfast_tiers::{Job, Store};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// A connection to the agent of a job.
#[derive(Debug)]
pub struct Agent {
    socket: OwnedFd,
    job: Job,
}

impl Agent {
    /// Connects.
    ///
    /// # Errors
    /// The job has no agent, or the socket belongs to another user.
    pub fn connect(job: &Job) -> Result<Agent, Failure> {
        let path = job.socket_path();
        let socket = unix_socket::connect(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => not_running(job),
            _ => Failure::system(format_args!("connecting to {}", path.display()), &error),
        })?;
        let who = unix_socket::peer(socket.as_fd()).map_err(|error| {
            Failure::system(format_args!("asking who listens at {}", path.display()), &error)
        })?;
        if who.uid != unix_socket::effective_user() && who.uid != 0 && unix_socket::effective_user() != 0 {
            return Err(Failure::new(
                Exit::Permission,
                format!("{} is served by user {}, not by you", path.display(), who.uid),
            ));
        }
        Ok(Agent { socket, job: job.clone() })
    }
    /// Sends a request without waiting for its reply.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn send(&self, request: &Request) -> Result<(), Failure> {
        let text = serde_json::to_vec(request)
            .map_err(|error| Failure::new(Exit::Internal, format!("encoding a request: {error}")))?;
        fd::send(self.socket.as_fd(), &text, libc::MSG_NOSIGNAL)
            .map(|_| ())
            .map_err(|error| self.lost(&error))
    }
    /// Waits for a reply; `None` if the time is over first.
    ///
    /// # Errors
    /// The agent is gone, or answers nonsense.
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Reply>, Failure> {
        let ready = poll::readable(&[self.socket.as_fd()], timeout).map_err(|error| self.lost(&error))?;
        if ready != [true] {
            return Ok(None);
        }
        let mut buffer = vec![0_u8; MAX_MESSAGE];
        match fd::receive(self.socket.as_fd(), &mut buffer, 0) {
            Ok(0) => Err(self.lost(&io::ErrorKind::UnexpectedEof.into())),
            Ok(len) => serde_json::from_slice(&buffer[..len])
                .map(Some)
                .map_err(|error| Failure::new(Exit::Internal, format!("answer of the agent: {error}"))),
            Err(error) => Err(self.lost(&error)),
        }
    }
    /// A request and its reply.
    ///
    /// # Errors
    /// As [`Agent::send`] and [`Agent::receive`].
    pub fn ask(&self, request: &Request) -> Result<Reply, Failure> {
        self.send(request)?;
        loop {
            if let Some(reply) = self.receive(None)? {
                return Ok(reply);
            }
        }
    }
    /// The state of the job.
    ///
    /// # Errors
    /// As [`Agent::ask`]; an agent that is restarting its program, and waits for a port or an id that is not free
    /// yet, does not answer.
    pub fn status(&self) -> Result<JobStatus, Failure> {
        const PATIENCE: Duration = Duration::from_secs(3);
        self.send(&Request::Status)?;
        match self.receive(Some(PATIENCE))? {
            Some(Reply::Status(status)) => Ok(status),
            None => Err(Failure::new(
                Exit::Internal,
                format!("the agent of job {} does not answer yet; try again", self.job.name()),
            )),
            Some(other) => {
                Err(Failure::new(Exit::Internal, format!("unexpected answer of the agent: {other:?}")))
            }
        }
    }
    fn lost(&self, error: &io::Error) -> Failure {
        // What it had not read yet when it ended (unix(7)): its program had ended before.
        let is_unread = matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
        if is_unread && error.raw_os_error().is_some() && self.has_left() {
            return not_running(&self.job);
        }
        Failure::new(
            Exit::Internal,
            format!("the agent of job {} has ended ({error}); see its agent.log", self.job.name()),
        )
    }

    /// Whether the agent has ended in order, or does so in a moment: it forgets its program then.
    fn has_left(&self) -> bool {
        const LEAVE: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        while self.job.is_live() && begun.elapsed() < LEAVE {
            thread::sleep(LEAVE / 200);
        }
        !self.job.is_live() && pidfile::program(&self.job).is_none()
    }
}

impl AsFd for Agent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn not_running(job: &Job) -> Failure {
    let name = job.name();
    let message = match pidfile::program(job) {
        Some(pid) => format!(
            "job {name} runs as process {pid}, but its agent was killed: it cannot be checkpointed any more"
        ),
        None => format!("job {name} is not running; `holdfast restart {name}` restarts it"),
    };
    Failure::new(Exit::NotFound, message)
}

/// The job of this name, or the running job whose program has this pid.
///
/// # Errors
/// There is none.
pub fn find_job(store: &Store, name_or_pid: &str) -> Result<Job, Failure> {
    let named = crate::names::open_job(store, name_or_pid);
    let (Err(_), Ok(pid)) = (&named, name_or_pid.parse::<i32>()) else { return named };
    job_of(store, &[pid])?.ok_or_else(|| no_job_of(store, pid))
}

fn no_job_of(store: &Store, pid: i32) -> Failure {
    let message = match procfs::existence(pid) {
        Existence::Living => format!(
            "process {pid} ({}) was not started by `holdfast run`; a running program cannot be taken over",
            procfs::name(pid)
        ),
        Existence::Dying | Existence::Ended => format!(
            "no job in {} is called {pid}, and there is no such process; see `holdfast list`",
            store.root().display()
        ),
    };
    Failure::new(Exit::NotFound, message)
}

/// The running job whose program is one of these processes.
///
/// # Errors
/// The store cannot be read.
pub fn job_of(store: &Store, pids: &[i32]) -> Result<Option<Job>, Failure> {
    for name in store.jobs()? {
        let Ok(job) = store.job(&name) else { continue };
        let program = || Agent::connect(&job).and_then(|agent| agent.status()).ok()?.pid;
        if job.is_live() && program().is_some_and(|pid| pids.contains(&pid)) {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

/// What the reply of a job's agent that has failed means for the user; `Ok` for all others.
///
/// # Errors
/// The reply is a refusal or an error.
pub fn accepted(job: &Job, reply: Reply) -> Result<Reply, Failure> {
    accepted_of(job.name(), reply)
}

/// The same of a job by its name, which another host may have.
///
/// # Errors
/// As [`accepted`].
pub fn accepted_of(name: &str, reply: Reply) -> Result<Reply, Failure> {
    match reply {
        Reply::NoProgram { awaited: true } => Err(Failure::new(
            Exit::NotFound,
            format!("the program of job {name} has not loaded libholdfast yet; try again in a moment"),
        )),
        Reply::NoProgram { awaited: false } => {
            Err(Failure::new(Exit::NotFound, format!("job {name} has just ended")))
        }
        Reply::Refused { reasons } => Err(Failure::new(Exit::Refused, reasons.join("\n"))),
        Reply::NoImage { message } => Err(Failure::new(Exit::NotFound, message)),
        Reply::BadImage { message } => Err(Failure::new(Exit::BadImage, message)),
        Reply::Full { message } => Err(Failure::new(Exit::CannotCreate, message)),
        Reply::Error { message } => Err(Failure::new(Exit::Internal, message)),
        other => Ok(other),
    }
}
