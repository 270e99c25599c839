//! Whether calls of ours may be made in a thread that is under seccomp filters of its program's own.
//!
//! Set when a thread is read inside a stop ([`crate::capture::filters`]); asked by [`super::live_thread`] and
//! [`super::vdso_call`] before they let a thread make the first call of a table, so that no call of ours is ever
//! answered by a filter: it could end the program. A tracer that may (root) has the kernel suspend the filters; for any
//! other the calls are tried on the filters' programs (`holdfast_filters`). Fails by: [`TraceError::Forbidden`].

use super::stub::{PREVIOUS, PREVIOUS_BUT_ONE, Row};
use crate::error::TraceError;
use holdfast_filters::{Call, Instruction, Verdict};
use holdfast_sys::ptrace;
use std::sync::Arc;

/// A filter's program.
pub type Program = Vec<Instruction>;

/// See the head of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Permission {
    /// No filter but the host's.
    #[default]
    Free,
    /// They are suspended, as long as this tracer has the thread.
    Suspended,
    /// What these filters allow; the oldest first.
    Noted(Arc<Noted>),
}

/// Filters, and what is known of a thread without asking it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Their programs.
    pub programs: Vec<Program>,
    /// What the calls of [`needless`] would tell is known: that there is nothing, and this personality(2).
    pub personality: Option<u32>,
    /// It is known that there are no interval timers.
    pub no_timers: bool,
}

/// Questions that need not be asked where their answers are known; see [`Noted::personality`].
fn needless(row: &Row, noted: &Noted) -> bool {
    const ALL: u64 = 0xffff_ffff;
    match (libc::c_long::from(row.number), row.args) {
        (libc::SYS_getitimer, _) => noted.no_timers,
        (libc::SYS_keyctl | libc::SYS_modify_ldt, [0, ..]) => noted.personality.is_some(),
        (libc::SYS_personality, [ALL, ..]) => noted.personality.is_some(),
        // Of the thread, not of an address.
        (libc::SYS_get_mempolicy, [_, _, _, 0, 0, _]) => noted.personality.is_some(),
        _ => false,
    }
}

impl Permission {
    /// Options of ptrace(2) that such a thread keeps, with others.
    pub fn options(&self, others: i32) -> i32 {
        if *self == Permission::Suspended { others | ptrace::SUSPEND_SECCOMP } else { others }
    }

    /// The first of these calls that may not be made, and the number of the filter that says so, counted from 1.
    pub fn forbidden(&self, rows: &[Row]) -> Option<(u32, usize)> {
        let Permission::Noted(noted) = self else { return None };
        let refuses = |row: &Row| {
            let call = call(row);
            let by = |program: &Program| holdfast_filters::verdict(program, &call) != Verdict::Allowed;
            noted.programs.iter().position(by).map(|place| (row.number, place + 1))
        };
        rows.iter().find_map(refuses)
    }

    /// The personality of the thread, where it is known and may not be asked for.
    pub fn personality(&self) -> Option<u32> {
        let Permission::Noted(noted) = self else { return None };
        noted.personality
    }

    /// Puts a call that fails (EINVAL) in the place of questions that may not be asked and need not be. `thread`: the
    /// ids of the process and the thread, as it knows them.
    pub fn leave_out(&self, rows: &mut [Row], thread: (i32, i32)) {
        /// No signal (kernel/signal.c, valid_signal).
        const NO_SIGNAL: u64 = 65;
        let Permission::Noted(noted) = self else { return };
        let id = |id: i32| u64::from(id.cast_unsigned());
        let nothing = Row::new(libc::SYS_tgkill, &[id(thread.0), id(thread.1), NO_SIGNAL]);
        for row in rows.iter_mut().filter(|row| needless(row, noted)) {
            if self.forbidden(&[*row]).is_some() {
                *row = nothing;
            }
        }
    }

    /// The same as an error of a thread, by its id as it knows it.
    ///
    /// # Errors
    /// One of them may not be made.
    pub fn ask(&self, inner: i32, rows: &[Row]) -> Result<(), TraceError> {
        match self.forbidden(rows) {
            None => Ok(()),
            Some((call, filter)) => Err(TraceError::Forbidden { tid: inner, call, filter }),
        }
    }
}

fn call(row: &Row) -> Call {
    let first_is_open = row.flags & (PREVIOUS | PREVIOUS_BUT_ONE) != 0;
    Call { number: row.number, args: row.args, first_is_open }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows all but one call.
    fn all_but(call: libc::c_long) -> Program {
        let op = |code: u16, jt: u8, jf: u8, k: u32| {
            let ([c0, c1], [k0, k1, k2, k3]) = (code.to_le_bytes(), k.to_le_bytes());
            [c0, c1, jt, jf, k0, k1, k2, k3]
        };
        let call = u32::try_from(call).unwrap_or(0);
        vec![op(0x20, 0, 0, 0), op(0x15, 0, 1, call), op(6, 0, 0, 0x8000_0000), op(6, 0, 0, 0x7fff_0000)]
    }

    #[test]
    fn a_call_is_made_only_where_each_filter_allows_it() {
        let rows = [libc::SYS_brk, libc::SYS_keyctl, libc::SYS_tgkill].map(|call| Row::new(call, &[]));
        let noted = |calls: &[libc::c_long]| {
            let programs = calls.iter().map(|call| all_but(*call)).collect();
            Permission::Noted(Arc::new(Noted { programs, ..Noted::default() }))
        };
        assert_eq!(Permission::Free.forbidden(&rows), None);
        assert_eq!(Permission::Suspended.forbidden(&rows), None);
        assert_eq!(noted(&[libc::SYS_read, libc::SYS_write]).forbidden(&rows), None);
        let (call, filter) = noted(&[libc::SYS_read, libc::SYS_keyctl]).forbidden(&rows).unwrap_or_default();
        assert_eq!((libc::c_long::from(call), filter), (libc::SYS_keyctl, 2));
        assert!(noted(&[libc::SYS_brk]).ask(7, &rows).is_err());
        let known =
            Noted { programs: vec![all_but(libc::SYS_keyctl)], personality: Some(0x40000), no_timers: false };
        let known = Permission::Noted(Arc::new(known));
        let mut left = rows;
        known.leave_out(&mut left, (7, 8));
        assert_eq!((left[0], left[1].args, left[2]), (rows[0], [7, 8, 65, 0, 0, 0], rows[2]));
        assert_eq!((known.forbidden(&left), known.personality()), (None, Some(0x40000)));
        assert_eq!(Permission::Suspended.options(1), 1 | ptrace::SUSPEND_SECCOMP);
        assert_eq!(Permission::Free.options(1), 1);
    }
}
