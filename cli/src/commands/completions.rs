//! `holdfast completions`: a completion script for a shell.

use crate::completion;
use crate::exit::Failure;
use crate::report;

/// Prints the script.
///
/// # Errors
/// Output cannot be written.
pub fn run(shell: clap_complete::Shell) -> Result<(), Failure> {
    let script = completion::script(shell).map_err(|error| Failure::system("completions", &error))?;
    report::print(&String::from_utf8_lossy(&script))
}
