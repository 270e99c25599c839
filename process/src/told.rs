//! What wait(2) has told the processes of a job of the stops of their children.
//!
//! Called by `cut`, inside the stop, on the tracer thread. Parents are asked with WNOWAIT: they are told nothing. Fails by:
//! [`CutError`]; the caller lets all processes go.

use crate::cut::{CutError, KeptAll, Target};
use crate::error::TraceError;
use crate::inject::batch::BUFFERS;
use crate::inject::stub::Row;
use crate::inside::Seen;
use crate::refuse;
use holdfast_image::record::InjectArea;
use holdfast_sys::procmem;
use std::time::{Duration, Instant};

/// So long a parent may not have heard yet that a child goes on. Most never ask.
const PATIENCE: Duration = Duration::from_secs(1);

/// The stopped processes whose parents have been told so, by their own ids.
///
/// # Errors
/// A parent has not been told yet that a child goes on: no restart brings that about again, and it may ask in a moment.
pub fn stops(targets: &[Target], seen: &[Seen], kept: &mut KeptAll) -> Result<Vec<i32>, CutError> {
    let parents: Vec<Option<i64>> = seen.iter().map(|one| one.status.number("PPid")).collect();
    let mut told = Vec::new();
    for (target, parent) in targets.iter().zip(seen) {
        let is_child = |(_, ppid): &(&Seen, &Option<i64>)| **ppid == Some(i64::from(target.pid));
        let children: Vec<&Seen> =
            seen.iter().zip(&parents).filter(is_child).map(|(child, _)| child).collect();
        let what = |child: &&Seen| if child.is_stopped() { libc::WSTOPPED } else { libc::WCONTINUED };
        let asked: Vec<(i32, i32)> = children.iter().map(|child| (child.inner_pid, what(child))).collect();
        let waiting = to_be_told(parent, &target.area, &asked)?;
        let before = std::mem::take(&mut kept.of(target).going_on);
        for (&(pid, what), waits) in asked.iter().zip(waiting) {
            if what == libc::WCONTINUED && waits {
                let since = before.get(&pid).copied().unwrap_or_else(Instant::now);
                kept.of(target).going_on.insert(pid, since);
            } else if what == libc::WSTOPPED && !waits {
                told.push(pid);
            }
        }
        if kept.of(target).going_on.values().any(|since| since.elapsed() < PATIENCE) {
            let reason = "it has not been told yet that a child goes on after a stop (WCONTINUED)";
            return Err(CutError::Unsettled(vec![refuse::process(target.pid, reason)]));
        }
    }
    Ok(told)
}

/// Whether wait(2) has something to tell a process of its children, each with what is asked for (WSTOPPED, WCONTINUED).
fn to_be_told(parent: &Seen, area: &InjectArea, children: &[(i32, i32)]) -> Result<Vec<bool>, TraceError> {
    /// More than siginfo_t has; the results of so many fit the buffers.
    const LEN: usize = 128;
    const MOST: usize = 64;
    let at = |index: usize| area.scratch.0 + BUFFERS + (index * LEN) as u64;
    let ask = |(index, &(child, what)): (usize, &(i32, i32))| {
        let options = what | libc::WNOHANG | libc::WNOWAIT;
        let (child, options) = (u64::from(child.cast_unsigned()), u64::from(options.cast_unsigned()));
        Row::new(libc::SYS_waitid, &[libc::P_PID.into(), child, at(index), options, 0])
    };
    let mut told = Vec::with_capacity(children.len());
    for some in children.chunks(MOST) {
        let rows: Vec<Row> = some.iter().enumerate().map(ask).collect();
        procmem::write(parent.live, at(0), &vec![0; some.len() * LEN])?;
        let results = parent.host.run(area, &rows, &mut |_| Ok(()))?;
        let mut infos = vec![0_u8; some.len() * LEN];
        procmem::read(parent.live, at(0), &mut infos)?;
        for ((&(_, what), result), info) in some.iter().zip(results).zip(infos.chunks_exact(LEN)) {
            // Nothing to tell: siginfo_t stays as it is, all zero. What cannot be asked counts as usual: a stop is told when
            // somebody asks, nobody asks for a go-on.
            told.push(if result == 0 { info[..4] != [0; 4] } else { what == libc::WSTOPPED });
        }
    }
    Ok(told)
}
