//! The front: what `holdfast run` and `holdfast restart` are while the program runs.
//!
//! It starts the agent (`launch`), starts the program ([`run_program`]) or rebuilds it (`restart`,
//! `protected_restart`), passes signals on and returns the program's status (`supervise`). It is single-threaded: a
//! rebuilt process is born from it by clone.

mod baseline;
pub mod environment;
pub mod inherited_fds;
pub mod launch;
mod protected_restart;
pub mod restart;
pub mod supervise;
pub mod wait_for_lock;

use crate::exit::{Exit, Failure};
use crate::link::Tell;
use crate::program::Program;
use crate::settings::Settings;
use holdfast_sys::{signals, spawn::Start};
use holdfast_tiers::{Job, Store};
pub use restart::failure_of_rebuild;
use std::ffi::{CString, OsString};
use supervise::{Child, Ending, StartState, supervise};

/// Starts the agent and then the program, and waits for its end.
///
/// # Errors
/// The agent or the program cannot be started; nothing runs then.
pub fn run_program(
    store: &Store,
    job: &Job,
    settings: &Settings,
    program: &Program,
    arguments: Vec<CString>,
    extra: &[(&str, OsString)],
    state: &StartState,
) -> Result<Ending, Failure> {
    let environment = environment::for_program(&job.socket_path(), settings, extra)?;
    let agent = launch::launch(
        store,
        job,
        &state.inherited_fds,
        launch::Order::Start { silent: !program.loads_libraries },
    )?;
    let closed =
        (0..).zip(signals::at_start().closed).filter(|(_, closed)| *closed).map(|(fd, _)| fd).collect();
    let start = Start {
        path: launch::c_string(program.path.as_os_str())?,
        arguments,
        environment,
        mask: state.mask,
        ignored: state.ignored.clone(),
        closed,
        descriptors: Vec::new(),
        detached: false,
    };
    let pid = start.spawn().map_err(|error| {
        Failure::new(Exit::NotExecutable, format!("executing {}: {error}", program.path.display()))
    })?;
    if !program.loads_libraries {
        agent.link.tell(&Tell::Started { pid });
    }
    supervise(&mut Child(pid), state, agent, job, settings)
}
