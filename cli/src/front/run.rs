//! Running a program from its beginning up to its end.

use super::environment;
use super::launch::{self, AgentTask, Interrupt};
use super::supervise::{Child, Ending, StartState, supervise};
use crate::entries::c_string;
use crate::exit::{Exit, Failure, FailureKind};
use crate::front_link::Tell;
use crate::last_run::LastRun;
use crate::program::Program;
use crate::report;
use crate::settings::{Settings, signal_name};
use holdfast_image::Epoch;
use holdfast_process::rebuild::begin_ahead;
use holdfast_sys::{signals, spawn::Start};
use holdfast_tiers::{Job, Store};
use std::ffi::{CString, OsString};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// What is to be run.
#[derive(Debug)]
pub struct RunRequest<'a> {
    /// The store.
    pub store: &'a Store,
    /// The job.
    pub job: &'a Job,
    /// Its settings.
    pub settings: &'a Settings,
    /// The program.
    pub program: &'a Program,
    /// Its arguments, with its name as the first.
    pub arguments: Vec<CString>,
    /// More variables of its environment.
    pub extra: &'a [(&'a str, OsString)],
    /// The image that has what it finds, if there is one.
    pub image: Option<Epoch>,
}

/// Starts the agent and then the program, and waits for its end.
///
/// # Errors
/// The agent or the program cannot be started; nothing runs then.
pub fn run_program(request: RunRequest<'_>, state: &StartState) -> Result<Ending, Failure> {
    let RunRequest { store, job, settings, program, arguments, extra, image } = request;
    let environment = environment::for_program(&job.socket_path(), settings, extra)?;
    let waits = Interrupt { fd: state.as_fd(), is_over: &|| state.told_to_end().is_some() };
    let started = launch::launch(
        store,
        job,
        &state.inherited_fds,
        AgentTask::Start { silent: !program.loads_libraries, key: environment::key_in(&environment) },
        // The other members of a gang may be long in coming.
        settings.gang.as_ref().map(|_| &waits),
    );
    let agent = match started {
        Err(failure) if failure.kind == FailureKind::Interrupted => {
            let signal = state.told_to_end().unwrap_or(libc::SIGTERM);
            report::note(&format!(
                "{} came before the program of job {} ran",
                signal_name(signal),
                job.name()
            ));
            return Ok(Ending::Program(ExitStatus::from_raw(signal)));
        }
        started => started?,
    };
    let closed =
        (0..).zip(signals::at_start().closed).filter(|(_, closed)| *closed).map(|(fd, _)| fd).collect();
    let start = Start {
        path: c_string(program.path.as_os_str())?,
        arguments,
        environment,
        mask: state.mask,
        ignored: state.ignored.clone(),
        closed,
        descriptors: Vec::new(),
        detached: false,
        session: false,
    };
    begin_ahead();
    let pid = start.spawn().map_err(|error| {
        Failure::new(Exit::NotExecutable, format!("executing {}: {error}", program.path.display()))
    })?;
    if !program.loads_libraries {
        agent.link.tell(&Tell::Started { pid });
    }
    report::detail(&format!("job {} runs as process {pid}, its agent is process {}", job.name(), agent.pid));
    let run = LastRun::begin(job, image);
    supervise(&mut Child(pid), state, agent, (job, settings), run)
}
