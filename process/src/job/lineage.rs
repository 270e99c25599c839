//! Who has been forked from a process of the job since that has executed its program.
//!
//! Used by `orphans`, for those whose environment names no job and that have no libholdfast (static programs). The
//! kernel gives each program that is executed 16 random bytes, in its memory where the auxiliary vector says
//! (AT_RANDOM, getauxval(3)); a child made by fork has them, and nothing else on the machine has. What a program has
//! made zero there says nothing.

use crate::job::target::Target;
use holdfast_sys::{procfs, procmem, proctext};
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// AT_RANDOM (include/uapi/linux/auxvec.h).
const RANDOM: u64 = 25;

type Bytes = [u8; 16];

/// The programs that the job's processes execute.
#[derive(Debug, Default)]
pub struct Lineages {
    known: Vec<i32>,
    found: OnceLock<BTreeSet<Bytes>>,
}

impl Lineages {
    /// Of these processes.
    pub fn of(known: &[Target]) -> Lineages {
        Lineages { known: known.iter().map(|target| target.pid).collect(), found: OnceLock::new() }
    }

    /// Whether a process is a copy of one of them, or of what they are copies of.
    pub fn have(&self, pid: i32) -> bool {
        let known = || self.known.iter().filter_map(|pid| bytes_of(*pid)).collect();
        bytes_of(pid).is_some_and(|bytes| self.found.get_or_init(known).contains(&bytes))
    }
}

/// Those of a process; `None`: it has none, or may not be looked into, or has ended.
fn bytes_of(pid: i32) -> Option<Bytes> {
    let vector = proctext::record(format!("/proc/{}/auxv", procfs::shown_by(pid))).ok()?;
    let at = procfs::auxiliary(&vector, RANDOM)?;
    let mut bytes = Bytes::default();
    procmem::read(pid, at, &mut bytes).ok()?;
    Some(bytes).filter(|bytes| *bytes != Bytes::default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_sys::ptrace;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn a_fork_has_them_and_what_is_executed_has_others() {
        let script = r#"$| = 1; my $copy = fork; if (!$copy) { sleep 60; exit } print "$copy\n"; wait"#;
        let mut parent = Command::new("perl").args(["-e", script]).stdout(Stdio::piped()).spawn().unwrap();
        let pid = parent.id().cast_signed();
        let own = std::process::id().cast_signed();
        let lineages = Lineages { known: vec![pid], found: OnceLock::new() };
        let mut line = String::new();
        BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let copy = line.trim().parse().unwrap();
        assert!(lineages.have(pid) && lineages.have(copy) && !lineages.have(own));
        ptrace::kill(copy, libc::SIGKILL).unwrap();
        parent.wait().unwrap();
        assert!(bytes_of(own).is_some());
    }
}
