//! What shells complete: options and commands from the definition of the command line, and the names of jobs.
//!
//! The scripts of `holdfast completions` have the shell call `holdfast` itself with [`VARIABLE`] set; `main` calls
//! [`answer`] first, and [`crate::args`] says where names of jobs go. Nothing is created or locked, for a user only
//! pressed a key: a store that is not there has no jobs.

use crate::args::Cli;
use clap::CommandFactory;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use holdfast_tiers::Store;
use std::io;

/// Has the name of the shell that asks. A name of our own: COMPLETE may be set for other programs.
const VARIABLE: &str = "HOLDFAST_COMPLETE";

/// Answers a shell, where one asks; says whether one did.
///
/// # Errors
/// Of clap: another shell, or standard output cannot be written.
pub fn answer() -> Result<bool, clap::Error> {
    let folder = std::env::current_dir().ok();
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).try_complete(std::env::args_os(), folder.as_deref())
}

/// The script that makes a shell ask.
///
/// # Errors
/// There is none for this shell.
pub fn script(shell: clap_complete::Shell) -> io::Result<Vec<u8>> {
    let shells = Shells::builtins();
    let name = shell.to_string();
    let shell = shells.completer(&name).ok_or_else(|| io::Error::other(format!("no script for {name}")))?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "holdfast", "holdfast", "holdfast", &mut script)?;
    Ok(script)
}

/// The jobs of the default store, for an argument that takes one.
pub fn jobs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let root = Store::default_root();
        let names =
            if root.is_dir() { Store::open(&root).and_then(|store| store.jobs()) } else { Ok(Vec::new()) };
        names.unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
    })
}
