//! `holdfast completions`: a completion script for a shell.

use crate::args::Cli;
use crate::exit::Failure;
use crate::report;
use clap::CommandFactory;

/// Prints the script.
///
/// # Errors
/// Output cannot be written.
pub fn run(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut script);
    report::print(&String::from_utf8_lossy(&script))
}
