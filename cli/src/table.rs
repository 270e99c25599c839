//! Tables on a terminal: as wide as that is, in its colours. What is piped or redirected is whole, and plain.
//!
//! Used by `list`. Invariants: a column that is not in `elastic` is never cut; without room the columns in `optional`
//! go, one by one, and the last column, if it is to, goes below its row. Pure, but for [`Table::shown`].

use crate::report;
use std::env;
use std::io::{self, IsTerminal};

/// A table, and what gives way where it is wider than the terminal.
pub struct Table<'a> {
    /// Heads of the columns.
    pub head: Vec<&'a str>,
    /// Cells, row by row.
    pub rows: Vec<Vec<String>>,
    /// Columns that are right-aligned.
    pub right: &'a [&'a str],
    /// Columns that are cut, the first of them first.
    pub elastic: &'a [&'a str],
    /// Columns that go, the first of them first.
    pub optional: &'a [&'a str],
    /// The last column goes below its row.
    pub below: bool,
}

/// A colour of a terminal (ECMA-48, SGR).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colour {
    /// It is well.
    Green,
    /// It wants attention.
    Yellow,
    /// It has failed.
    Red,
}

impl Colour {
    fn of_state(state: &str) -> Option<Colour> {
        match state.split(' ').next().unwrap_or_default() {
            "running" => Some(Colour::Green),
            "checkpointed" | "ending" => Some(Colour::Yellow),
            "failed" | "killed" | "lost" | "no" => Some(Colour::Red),
            _ => None,
        }
    }

    fn paint(self, text: &str) -> String {
        let number = match self {
            Colour::Green => 32,
            Colour::Yellow => 33,
            Colour::Red => 31,
        };
        format!("\u{1b}[{number}m{text}\u{1b}[0m")
    }
}

/// Whether standard output takes colours: a terminal that can, of a user who has not said no (https://no-color.org).
fn has_colours() -> bool {
    let is_set = |name| env::var_os(name).is_some_and(|value: std::ffi::OsString| !value.is_empty());
    io::stdout().is_terminal()
        && !is_set("NO_COLOR")
        && env::var_os("TERM").is_some_and(|term| term != "dumb")
}

impl Table<'_> {
    /// For standard output.
    pub fn shown(&self) -> String {
        let columns = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
        // Some terminals do not know.
        self.text(columns.filter(|columns| *columns > 0), has_colours())
    }

    fn text(&self, columns: Option<usize>, colours: bool) -> String {
        let all = self.cut(&[], usize::MAX);
        let Some(columns) = columns else { return self.painted(&all, None, colours) };
        for gone in 0..=self.optional.len() {
            let one = self.cut(&self.optional[..gone], columns);
            if width(&one.0, &one.1) <= columns {
                return self.painted(&one, None, colours);
            }
        }
        if !self.below {
            return self.painted(&self.cut(self.optional, columns), None, colours);
        }
        let last = self.head.len().saturating_sub(1);
        let without = Table {
            head: self.head[..last].to_vec(),
            rows: self.rows.iter().map(|row| row[..last.min(row.len())].to_vec()).collect(),
            below: false,
            ..*self
        };
        let notes: Vec<&str> = self.rows.iter().map(|row| row.get(last).map_or("", String::as_str)).collect();
        let fits = (0..=self.optional.len()).find(|&gone| {
            let one = without.cut(&self.optional[..gone], columns);
            width(&one.0, &one.1) <= columns
        });
        let one = without.cut(&self.optional[..fits.unwrap_or(self.optional.len())], columns);
        without.painted(&one, Some(&notes), colours)
    }

    /// Without some columns, and the elastic ones cut for so many columns of letters.
    fn cut(&self, gone: &[&str], columns: usize) -> (Vec<&str>, Vec<Vec<String>>) {
        /// No column becomes narrower: its content could not be told.
        const LEAST: usize = 8;
        let stays: Vec<bool> = self.head.iter().map(|head| !gone.contains(head)).collect();
        let head: Vec<&str> =
            self.head.iter().zip(&stays).filter(|(_, stays)| **stays).map(|(h, _)| *h).collect();
        let kept = |row: &Vec<String>| {
            row.iter().zip(&stays).filter(|(_, stays)| **stays).map(|(cell, _)| cell.clone()).collect()
        };
        let mut rows: Vec<Vec<String>> = self.rows.iter().map(kept).collect();
        for name in self.elastic {
            let Some(column) = head.iter().position(|head| head == name) else { continue };
            // Blanks at the end of a line are not printed.
            rows.iter_mut().filter_map(|row| row.get_mut(column)).for_each(|cell| {
                cell.truncate(cell.trim_end().len());
            });
            let longest =
                rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
            let over = width(&head, &rows).saturating_sub(columns);
            let room = longest.unwrap_or(0).saturating_sub(over).max(LEAST);
            rows.iter_mut()
                .filter_map(|row| row.get_mut(column))
                .for_each(|cell| *cell = shortened(cell, room));
        }
        (head, rows)
    }

    fn painted(
        &self,
        (head, rows): &(Vec<&str>, Vec<Vec<String>>),
        below: Option<&[&str]>,
        colours: bool,
    ) -> String {
        let right: Vec<usize> =
            (0..head.len()).filter(|&column| self.right.contains(&head[column])).collect();
        let text = report::table(head, rows, &right);
        let state = head.iter().position(|head| *head == "STATE");
        let mut shown = String::new();
        for (at, line) in text.lines().enumerate() {
            let row = at.checked_sub(1).and_then(|row| rows.get(row));
            let cell = row.zip(state).and_then(|(row, state)| row.get(state));
            match cell.and_then(|cell| Some((cell, Colour::of_state(cell)?))).filter(|_| colours) {
                // The name of a job has no blanks.
                Some((cell, colour)) => {
                    shown.push_str(&line.replacen(
                        &format!(" {cell}"),
                        &format!(" {}", colour.paint(cell)),
                        1,
                    ));
                }
                None => shown.push_str(line),
            }
            shown.push('\n');
            let note = at.checked_sub(1).and_then(|row| below?.get(row)).filter(|note| !note.is_empty());
            shown.extend(note.map(|note| format!("    {note}\n")));
        }
        shown
    }
}

fn width(head: &[&str], rows: &[Vec<String>]) -> usize {
    report::table(head, rows, &[]).lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// A text that has so many letters at most.
fn shortened(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(note: &str) -> Table<'static> {
        let row = |words: [&str; 5]| words.map(str::to_owned).to_vec();
        Table {
            head: vec!["JOB", "STATE", "PID", "COMMAND", "NOTE"],
            rows: vec![
                row(["sim", "running", "7", "./sim --input a long name of a file ", ""]),
                row(["b", "killed (SIGKILL)", "12", "b", note]),
            ],
            right: &["PID"],
            elastic: &["COMMAND"],
            optional: &["PID"],
            below: true,
        }
    }

    #[test]
    fn a_pipe_has_all() {
        assert_eq!(
            jobs("n").text(None, false),
            "JOB  STATE             PID  COMMAND                              NOTE\n\
             sim  running             7  ./sim --input a long name of a file\n\
             b    killed (SIGKILL)   12  b                                    n\n"
        );
    }

    #[test]
    fn commands_give_way_and_then_other_columns() {
        let at = |columns| jobs("").text(Some(columns), false);
        assert!(at(200).contains("of a file"), "{}", at(200));
        assert!(at(50).contains("  ./sim --input a…") && at(50).contains("PID"), "{}", at(50));
        // No room for the eight letters of a command.
        assert!(!at(34).contains("PID") && at(34).contains("killed (SIGKILL)"), "{}", at(34));
        for columns in 1..80 {
            let text = at(columns);
            assert!(text.contains("sim  running") && text.contains("killed (SIGKILL)"), "{text}");
        }
    }

    #[test]
    fn a_note_goes_below_its_row() {
        let note = "the last checkpoint failed: no space left";
        let text = jobs(note).text(Some(50), false);
        assert!(text.ends_with(&format!("\n    {note}\n")) && !text.contains("NOTE"), "{text}");
        assert!(jobs(note).text(Some(200), false).contains("NOTE"));
    }

    #[test]
    fn states_have_colours() {
        let text = jobs("").text(None, true);
        assert!(text.contains("sim  \u{1b}[32mrunning\u{1b}[0m  "), "{text}");
        assert!(text.contains("\u{1b}[31mkilled (SIGKILL)\u{1b}[0m"), "{text}");
        assert_eq!(Colour::of_state("done"), None);
    }
}
