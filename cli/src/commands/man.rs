//! `holdfast __man`: the man pages, one per command, from the definition of the command line. For `make install`.

use crate::args::Cli;
use crate::exit::Failure;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::path::Path;
use std::{fs, io};

/// Writes `holdfast.1` and `holdfast-COMMAND.1` into a folder that is there.
///
/// # Errors
/// A file cannot be written.
pub fn run(folder: &Path) -> Result<(), Failure> {
    let mut all = Cli::command().disable_help_subcommand(true);
    all.build();
    page(folder, all.clone())?;
    for command in all.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("holdfast-{}", command.get_name());
        // `name` and `display_name` of a command want text that lives as long as the program.
        page(folder, command.clone().display_name(name))?;
    }
    Ok(())
}

fn page(folder: &Path, command: Command) -> Result<(), Failure> {
    let man = Man::new(command).manual("Holdfast").date("");
    let path = folder.join(man.get_filename());
    let failed = |error: io::Error| Failure::system(format_args!("writing {}", path.display()), &error);
    let mut text = Vec::new();
    man.render(&mut text).map_err(failed)?;
    fs::write(&path, text).map_err(failed)
}
