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
    fs::write(&path, as_typed(&String::from_utf8_lossy(&text))).map_err(failed)
}

/// What is below a help text, examples and tables, line by line: man(7) would make a paragraph of it.
fn as_typed(page: &str) -> String {
    const BELOW: &str = ".SH EXTRA\n";
    let Some((above, below)) = page.split_once(BELOW) else { return page.to_owned() };
    let (text, rest) = below.find("\n.SH").map_or((below, ""), |end| below.split_at(end + 1));
    format!("{above}.SH EXAMPLES\n.nf\n{text}.fi\n{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines() {
        let page = ".SH NAME\nx\n.SH EXTRA\n one\n two\n.SH VERSION\nv1\n";
        let wanted = ".SH NAME\nx\n.SH EXAMPLES\n.nf\n one\n two\n.fi\n.SH VERSION\nv1\n";
        assert_eq!(as_typed(page), wanted);
        assert_eq!(as_typed(".SH EXTRA\n one\n"), ".SH EXAMPLES\n.nf\n one\n.fi\n");
        assert_eq!(as_typed(".SH NAME\nx\n"), ".SH NAME\nx\n");
    }
}
