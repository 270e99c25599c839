//! The terminal from which a restart was started, and which process group is in its foreground.
//!
//! A program without job control is in the group of the front, and Ctrl-C is for both. A shell has put itself, or a
//! command of its own, into the foreground, and gives it only to groups that it knows: a read by any other
//! process is an error to it (EIO), and its end. Looked at by the front ([`FrontTerminal::look`]), used in the first
//! of the new processes. How it fails: a note.

use holdfast_image::record::ProcessRecord;
use holdfast_sys::{attributes, objects, terminal};
use std::os::fd::AsFd;

/// What the front has.
#[derive(Clone, Copy, Debug)]
pub struct FrontTerminal {
    /// A controlling terminal.
    exists: bool,
    /// Its group is in the foreground there: it may give that away.
    is_held: bool,
}

impl FrontTerminal {
    /// Of the calling process.
    pub fn look() -> FrontTerminal {
        let (exists, held) = terminal::held();
        FrontTerminal { exists, is_held: held.is_some() }
    }

    /// Whether the first process makes the group that it led: under a terminal only if it was in the foreground with
    /// that, and else stays in the group of the front.
    pub fn makes_group_of(self, first: &ProcessRecord) -> bool {
        !self.exists || foreground(first) == Some(first.pgid)
    }

    /// Puts the group that was in the foreground there again. All groups are there, SIGTTOU is blocked. A note if it
    /// cannot be.
    pub fn give_to(self, first: &ProcessRecord) -> Option<String> {
        let group = foreground(first).filter(|_| self.is_held)?;
        // The id of the only process may be another one now.
        let group = if group == first.pgid { attributes::own_process_group() } else { group };
        let flags = (libc::O_RDWR | libc::O_NOCTTY).cast_unsigned();
        let given = objects::open(c"/dev/tty", flags, 0)
            .and_then(|terminal| terminal::set_foreground(terminal.as_fd(), group));
        given
            .err()
            .map(|error| format!("process group {group} is not in the foreground of the terminal: {error}"))
    }
}

/// The group of the program that was in the foreground of the terminal from which it was started; none: that of the
/// front, or of another one.
fn foreground(first: &ProcessRecord) -> Option<i32> {
    // A session of its own has another terminal.
    if first.sid == first.pid {
        return None;
    }
    let in_session = |process: &&ProcessRecord| process.sid == first.sid && process.files.in_foreground;
    let group = first.processes().find(in_session)?.pgid;
    (group != first.pgid || group == first.pid).then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::testing::empty_record;

    fn process(pid: i32, pgid: i32, in_foreground: bool) -> ProcessRecord {
        let mut process = ProcessRecord { pid, pgid, sid: 5, ..empty_record() };
        process.files.in_foreground = in_foreground;
        process
    }

    #[test]
    fn the_foreground_is_a_group_of_the_program() {
        // A program without job control; a shell at its prompt; a shell that runs a command; a script with a shell.
        assert_eq!(foreground(&process(10, 7, true)), None);
        assert_eq!(foreground(&process(10, 10, true)), Some(10));
        let with = |mut first: ProcessRecord, other| {
            first.others = vec![other];
            first
        };
        assert_eq!(foreground(&with(process(10, 10, false), process(11, 11, true))), Some(11));
        assert_eq!(foreground(&with(process(10, 7, false), process(11, 11, true))), Some(11));
        // In the background of its terminal; with a terminal of its own.
        assert_eq!(foreground(&process(10, 10, false)), None);
        assert_eq!(foreground(&ProcessRecord { sid: 10, ..process(10, 10, true) }), None);
        let other_session = ProcessRecord { sid: 11, ..process(11, 11, true) };
        assert_eq!(foreground(&with(process(10, 10, false), other_session)), None);
    }

    #[test]
    fn a_shell_leaves_the_group_of_the_front() {
        let front = FrontTerminal { exists: true, is_held: true };
        assert!(
            front.makes_group_of(&process(10, 10, true)) && !front.makes_group_of(&process(10, 10, false))
        );
        assert!(FrontTerminal { exists: false, is_held: false }.makes_group_of(&process(10, 10, false)));
    }
}
