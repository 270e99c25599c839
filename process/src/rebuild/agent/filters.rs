//! Seccomp filters of the program are installed again (`image::confinement`).
//!
//! Called by [`super::rebuild_process`]. Where the agent may, the filters are suspended until the program runs
//! ([`Moment::Suspended`]), and installed while threads still have the rights of the restart: who had CAP_SYS_ADMIN
//! once needed no no_new_privs. Elsewhere ([`Moment::Last`]) they come after all other calls, and a thread stops at the
//! end of the last one, as no other may be allowed any more. Filters that all threads of a process have in common are
//! one for all (SECCOMP_FILTER_FLAG_TSYNC), so that the program can take its threads along again; others are installed
//! in each thread. What must hold: a thread runs under all of its filters, in their order. How it fails: names the
//! filter.

use super::remote_calls::{Need, SeedThread};
use super::threads::NewThread;
use crate::capture::filter_counts::may_suspend;
use crate::error::TraceError;
use crate::inject::filter_calls::{Way, way};
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use holdfast_image::confinement::chain;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::ptrace;
use std::io;

/// When filters are installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// While they are suspended, before rights are given up.
    Suspended,
    /// After everything else.
    Last,
}

/// Installs them, if this is the moment.
///
/// # Errors
/// The kernel does not take one.
pub fn install(threads: &[NewThread<'_>], record: &ProcessRecord, now: Moment) -> Result<(), RebuildError> {
    let is_now = may_suspend() == (now == Moment::Suspended);
    if !is_now || threads.iter().all(|thread| thread.record.confinement.is_none()) {
        return Ok(());
    }
    for thread in threads {
        if now == Moment::Suspended {
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL | ptrace::SUSPEND_SECCOMP;
            ptrace::set_options(thread.seed.remote.tid, options).map_err(TraceError::from)?;
        }
        if thread.record.confinement.no_new_privs {
            let mut batch = thread.seed.batch();
            let args = [libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0];
            let need = Need::Must("set no_new_privs of thread", u64::from(thread.record.tid.cast_unsigned()));
            batch.call(libc::SYS_prctl, &args, need)?;
            batch.finish()?;
        }
    }
    let chains: Vec<Vec<u32>> =
        threads.iter().map(|thread| chain(&record.filters, thread.record.confinement.filter)).collect();
    let common = common(record, &chains);
    for (at, (thread, chain)) in threads.iter().zip(&chains).enumerate() {
        let from = if at == 0 { 0 } else { common };
        for number in from..chain.len() {
            install_one(thread.seed, record, chain, number, number < common)?;
        }
    }
    for thread in threads.iter().filter(|thread| thread.record.confinement.strict) {
        if now == Moment::Last {
            let what = format!(
                "thread {} was in seccomp's strict mode, which only root can put back",
                thread.record.tid
            );
            return Err(RebuildError::Call { what, source: io::Error::from_raw_os_error(libc::EPERM) });
        }
        let row = Row::new(libc::SYS_prctl, &[libc::PR_SET_SECCOMP as u64, 1]);
        let made = thread.seed.run_and_stop(row, &[])?;
        checked(made, || format!("seccomp's strict mode of thread {}", thread.record.tid))?;
    }
    Ok(())
}

/// How many filters the first thread installs for all: those that all have, as far as the ones below allow the call.
fn common(record: &ProcessRecord, chains: &[Vec<u32>]) -> usize {
    let Some((first, others)) = chains.split_first().filter(|(_, others)| !others.is_empty()) else {
        return 0;
    };
    let is_common = |number: &usize| {
        let all_have = others.iter().all(|other| other.get(*number) == first.get(*number));
        all_have && (may_suspend() || way(&record.filters, first, *number, true).is_some())
    };
    (0..first.len()).take_while(is_common).count()
}

/// One filter of a thread's, over those that come before it; `for_all`: over all other threads, too.
fn install_one(
    seed: SeedThread,
    record: &ProcessRecord,
    chain: &[u32],
    number: usize,
    for_all: bool,
) -> Result<(), RebuildError> {
    let what = || format!("seccomp filter {} of thread {}", number + 1, seed.remote.inner.1);
    let place = chain.get(number).and_then(|place| record.filters.get(*place as usize));
    let filter = place.ok_or_else(|| RebuildError::Image(format!("{} is not there", what())))?;
    let way = if may_suspend() { Some(Way::Seccomp) } else { way(&record.filters, chain, number, for_all) };
    let way = way.ok_or_else(|| {
        let what = format!("installing {}, which those below it do not allow", what());
        RebuildError::Call { what, source: io::Error::from_raw_os_error(libc::EPERM) }
    })?;
    // struct sock_fprog, then the program.
    let at = seed.area().buffers;
    let count = filter.program.0.len() / 8;
    let head = [count as u64, at + 16];
    let data: Vec<u8> =
        head.iter().flat_map(|word| word.to_le_bytes()).chain(filter.program.0.iter().copied()).collect();
    let made = seed.run_and_stop(way.row(filter, for_all, at), &data)?;
    // With SECCOMP_FILTER_FLAG_TSYNC: the id of a thread that could not be taken along.
    checked(if made > 0 { -i64::from(libc::ESRCH) } else { made }, what)
}

fn checked(made: i64, what: impl Fn() -> String) -> Result<(), RebuildError> {
    if made == 0 {
        return Ok(());
    }
    let source = io::Error::from_raw_os_error(i32::try_from(-made).unwrap_or(libc::EIO));
    Err(RebuildError::Call { what: format!("installing {}", what()), source })
}
