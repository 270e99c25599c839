//! What a checkpoint may take of memory where a control group limits it: looked up before the stop.
//!
//! Used by the checkpoint thread. A checkpoint takes memory for the flush's buffers ([`BUFFERS`]), for shared memory,
//! which is copied whole, and for the pages that the program writes meanwhile. What must hold: the copies are bounded
//! by what the tightest group has left: while there could be more of them the program is held. A checkpoint that has
//! no room for the least of them is refused before the program is stopped. The kernel may find less when it comes to
//! that (others live in the group): it ends the frozen copy, then the agent, before the program (`oom_score_adj`). What
//! the server of objects of the same store may still take is left to it ([`crate::sharing`]).
//! Fails by: [`CheckpointError::Refused`].

use super::error::CheckpointError;
use crate::settings::{Cow, Settings};
use crate::sharing;
use holdfast_image::{PAGE_SIZE, PageCount};
use holdfast_pager::CowLimit;
use holdfast_process::{Members, refuse_process};
use holdfast_sys::cgroup::{self, Room};
use holdfast_sys::procfs::{self, Status};
use holdfast_tiers::Claim;

/// What the flush holds at once, and the tables of a frozen copy: bytes.
pub const BUFFERS: u64 = 16 << 20;
/// With less for copies the program would wait for the flush all the time: bytes.
pub const LEAST: u64 = 4 << 20;

/// What one checkpoint has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Headroom {
    /// Most bytes that are copied; none: nothing limits them.
    most: Option<u64>,
    /// The group that limits them.
    group: Option<Room>,
    /// What others may still take of the host's memory.
    claimed: u64,
    /// What the program has in memory, bytes.
    resident: u64,
}

impl Headroom {
    /// Of the tightest group that the program or the agent is in.
    ///
    /// # Errors
    /// It is too little.
    pub fn of(members: &Members) -> Result<Headroom, CheckpointError> {
        let pid = members.program().pid;
        let rooms = [pid.cast_unsigned(), std::process::id()].into_iter().filter_map(cgroup::tightest);
        let by = members.targets().iter().map(|target| procfs::shown_by(target.pid));
        let statuses = by.filter_map(|tid| Status::read(tid, tid).ok());
        let (mut resident, mut shared) = (0_u64, 0_u64);
        for status in statuses {
            resident = resident.saturating_add(kilobytes(&status, "VmRSS"));
            // Mostly all processes have the same.
            shared = shared.max(kilobytes(&status, "RssShmem"));
        }
        let group = rooms.min_by_key(Room::left);
        let most = group.as_ref().map(|room| most_copied(room, shared)).transpose();
        let most = most.map_err(|reason| CheckpointError::Refused(vec![refuse_process(pid, reason)]))?;
        Ok(Headroom { most, group, claimed: 0, resident })
    }

    /// What others may still take is theirs; what a checkpoint cannot do without is not.
    pub fn leave(&mut self, claims: &[Claim]) {
        if let (Some(most), Some(group)) = (&mut self.most, &self.group) {
            let theirs = sharing::claimed(claims, group);
            *most = most.saturating_sub(theirs / 4 * 3).max(LEAST.min(*most));
        }
        self.claimed = claims.iter().fold(0, |sum, claim| sum.saturating_add(claim.memory));
    }

    /// What the program has in memory, bytes.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// The settings, with no larger bound on copies than there is room for.
    pub fn bounded(&self, settings: Settings) -> Settings {
        let Some(most) = self.most else { return settings };
        let wanted = settings.cow.0.pages(PageCount(self.resident / PAGE_SIZE));
        if wanted.is_some_and(|wanted| wanted.bytes() <= most) {
            return settings;
        }
        tracing::info!("copies get at most {} MiB: the control group has no more memory", most >> 20);
        Settings { cow: Cow(CowLimit::Bytes(most)), ..settings }
    }

    /// What of it the memory tier may take for an image: half of what there is, so that as much is left for copies;
    /// where no group limits it, half of what the host has left. Copies get the rest.
    pub fn share_with_tier(&mut self) -> u64 {
        match &mut self.most {
            Some(most) => {
                let share = most.saturating_sub(LEAST) / 2;
                *most -= share;
                share
            }
            None => cgroup::of_host().map_or(0, |host| host.left().saturating_sub(self.claimed) / 2),
        }
    }

    /// Most pages that may be copied inside the stop, of each of `processes` processes.
    pub fn most_copied(&self, processes: usize) -> Option<PageCount> {
        self.most.map(|most| PageCount(most / PAGE_SIZE / (processes.max(1) as u64)))
    }
}

fn kilobytes(status: &Status, name: &str) -> u64 {
    let number = status.get(name).and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0).saturating_mul(1024)
}

/// Most bytes of copies in such a group, with so much shared memory; or why there can be none. A quarter is left for
/// what the program does beyond the bound before it can be held.
fn most_copied(room: &Room, shared: u64) -> Result<u64, String> {
    let least = BUFFERS.saturating_add(shared).saturating_add(LEAST / 3 * 4);
    if room.left() >= least {
        return Ok((room.left() - BUFFERS - shared) / 4 * 3);
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Err(format!(
        "its control group {} may have {} MiB of memory and has {} MiB left, and a checkpoint needs {} MiB: raise the \
         limit, or end something else in the group",
        room.group.display(),
        room.limit >> 20,
        room.left() >> 20,
        mib(least)
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn room(left: u64) -> Room {
        Room { group: "/sys/fs/cgroup/a".into(), limit: 400 << 20, used: (400 << 20) - left }
    }

    #[test]
    fn copies_have_three_quarters_of_what_is_left_or_there_are_none() {
        assert_eq!(most_copied(&room(BUFFERS + (40 << 20)), 0), Ok(30 << 20));
        assert_eq!(most_copied(&room(BUFFERS + (40 << 20)), 20 << 20), Ok(15 << 20));
        let why = most_copied(&room(20 << 20), 0).unwrap_err();
        assert!(why.contains("/sys/fs/cgroup/a may have 400 MiB of memory and has 20 MiB left"), "{why}");
        assert!(why.contains("needs 22 MiB"), "{why}");
        assert!(most_copied(&room(40 << 20), 30 << 20).unwrap_err().contains("needs 52 MiB"));
    }

    #[test]
    fn a_bound_that_fits_is_kept_and_a_larger_one_is_not() {
        let headroom = |most| Headroom { most, group: None, claimed: 0, resident: 1 << 30 };
        let with = |cow: &str| Settings { cow: cow.parse().unwrap(), ..Settings::default() };
        let bound = |most, cow: &str| headroom(most).bounded(with(cow)).cow.to_string();
        assert_eq!(bound(None, "none"), "none");
        assert_eq!(bound(Some(64 << 20), "5%"), "5%");
        assert_eq!(bound(Some(32 << 20), "5%"), "32M");
        assert_eq!(bound(Some(32 << 20), "none"), "32M");
        assert_eq!(bound(Some(32 << 20), "16M"), "16M");
        assert_eq!(headroom(Some(32 << 20)).most_copied(4), Some(PageCount(2048)));
        assert_eq!(headroom(None).most_copied(4), None);
        // The memory tier takes from the same.
        let mut tight = headroom(Some(LEAST + (32 << 20)));
        assert_eq!(tight.share_with_tier(), 16 << 20);
        assert_eq!(tight.most, Some(LEAST + (16 << 20)));
        assert_eq!(headroom(Some(LEAST)).share_with_tier(), 0);
        assert!(cgroup::of_host().unwrap().left() > 0 && headroom(None).share_with_tier() > 0);
    }

    #[test]
    fn what_the_server_of_objects_may_still_take_is_left_to_it() {
        let claims = |memory| [Claim { pid: std::process::id(), memory }];
        // Where no group limits it: of the host.
        let mut free = Headroom { most: None, group: None, claimed: 0, resident: 0 };
        let all = free.share_with_tier();
        free.leave(&claims(all));
        let left = free.share_with_tier();
        assert!(left < all / 4 * 3, "{left} of {all}");
        free.leave(&claims(u64::MAX));
        assert_eq!(free.share_with_tier(), 0);
        // Of a group that both are in; a checkpoint goes on with the least.
        let room = Room { group: "/".into(), ..room(200 << 20) };
        let tight = Headroom { most: Some(120 << 20), group: Some(room), claimed: 0, resident: 0 };
        let most = |memory| {
            let mut tight = tight.clone();
            tight.leave(&claims(memory));
            tight.most
        };
        assert_eq!(most(40 << 20), Some(90 << 20));
        assert_eq!(most(1 << 40), Some(LEAST));
    }
}
