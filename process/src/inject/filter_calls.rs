//! The call by which a thread installs a seccomp filter at a restart, where those below it are in force already.
//!
//! Used by the restart, which makes it, and by the checkpoint, which refuses what a restart could not do. Pure.

use super::permission::{Noted, Permission, Program};
use super::stub::Row;
use holdfast_image::confinement::{FilterRecord, chain};
use std::sync::Arc;

// include/uapi/linux/seccomp.h
const SET_MODE_FILTER: u64 = 1;
const MODE_FILTER: u64 = 2;
const FLAG_TSYNC: u64 = 1;
const FLAG_LOG: u64 = 2;
/// Without it the kernel would change the thread's speculation control, which the record has.
const FLAG_SPEC_ALLOW: u64 = 4;

/// Which call it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// seccomp(2).
    Seccomp,
    /// prctl(PR_SET_SECCOMP): without flags.
    Prctl,
}

impl Way {
    /// The call; `for_all`: other threads are taken along; `at`: where its `struct sock_fprog` is.
    pub fn row(self, filter: &FilterRecord, for_all: bool, at: u64) -> Row {
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        let flags = FLAG_SPEC_ALLOW | flag(for_all, FLAG_TSYNC) | flag(filter.logs, FLAG_LOG);
        match self {
            Way::Seccomp => Row::new(libc::SYS_seccomp, &[SET_MODE_FILTER, flags, at]),
            Way::Prctl => Row::new(libc::SYS_prctl, &[libc::PR_SET_SECCOMP as u64, MODE_FILTER, at]),
        }
    }
}

/// A filter's program as it is recorded.
pub fn program(bytes: &[u8]) -> Program {
    bytes.as_chunks().0.to_vec()
}

/// How the filter at a place of a chain is installed, if those below it allow a way.
pub fn way(filters: &[FilterRecord], chain: &[u32], number: usize, for_all: bool) -> Option<Way> {
    let filter = |place: &u32| filters.get(*place as usize);
    let below = chain.get(..number)?.iter().filter_map(filter);
    let programs = below.map(|filter| program(&filter.program.0)).collect();
    let below = Permission::Noted(Arc::new(Noted { programs, ..Noted::default() }));
    let own = filter(chain.get(number)?)?;
    let suits = |way: &Way| *way == Way::Seccomp || !for_all && !own.logs;
    let allowed = |way: &Way| below.forbidden(&[way.row(own, for_all, 0)]).is_none();
    [Way::Seccomp, Way::Prctl].into_iter().filter(suits).find(allowed)
}

/// The first filter that no thread could install over those below it, by its number in its chain, counted from 1.
pub fn impossible(filters: &[FilterRecord]) -> Option<usize> {
    let places = 0..u32::try_from(filters.len()).unwrap_or(0);
    let number = |place: u32| {
        let chain = chain(filters, Some(place));
        let last = chain.len().checked_sub(1)?;
        way(filters, &chain, last, false).is_none().then_some(last + 1)
    };
    places.into_iter().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::bytes::Blob;

    /// A filter that allows all but these calls.
    fn all_but(below: Option<u32>, calls: &[libc::c_long]) -> FilterRecord {
        let op = |code: u16, jt: u8, k: u32| {
            let ([c0, c1], [k0, k1, k2, k3]) = (code.to_le_bytes(), k.to_le_bytes());
            [c0, c1, jt, 0, k0, k1, k2, k3]
        };
        let mut program = vec![op(0x20, 0, 0)];
        for (after, call) in calls.iter().enumerate() {
            let to_the_end = u8::try_from(calls.len() - after).unwrap_or(0);
            program.push(op(0x15, to_the_end, u32::try_from(*call).unwrap_or(0)));
        }
        program.extend([op(6, 0, 0x7fff_0000), op(6, 0, 0)]);
        FilterRecord { below, logs: false, program: Blob(program.as_flattened().to_vec()) }
    }

    #[test]
    fn a_filter_is_installed_as_those_below_it_allow() {
        let none: &[libc::c_long] = &[];
        let (no_seccomp, neither) = ([libc::SYS_seccomp], [libc::SYS_seccomp, libc::SYS_prctl]);
        let over = |lowest: &[libc::c_long]| vec![all_but(None, lowest), all_but(Some(0), none)];
        assert_eq!(way(&over(none), &[0, 1], 1, true), Some(Way::Seccomp));
        assert_eq!(way(&over(&no_seccomp), &[0, 1], 1, false), Some(Way::Prctl));
        assert_eq!(way(&over(&no_seccomp), &[0, 1], 1, true), None, "prctl takes no other threads along");
        assert_eq!(way(&over(&neither), &[0, 1], 0, true), Some(Way::Seccomp), "nothing is below it");
        assert_eq!(way(&over(&neither), &[0, 1], 1, false), None);
        assert_eq!((impossible(&over(&no_seccomp)), impossible(&over(&neither))), (None, Some(2)));
        let logging = FilterRecord { logs: true, ..all_but(Some(0), none) };
        assert_eq!(impossible(&[all_but(None, &no_seccomp), logging]), Some(2), "prctl takes no flags");
    }
}
