//! Whose a System V object is that was found in the place of the program's: by its id, or by its key.
//!
//! Called by `ipc` and `sysv_shm` before anything is written to one. What must hold: who owns an object, or has made
//! it, may do with it what he likes (ipc/util.c, `ipcctl_obtain_check`), so neither may be another user than those who
//! could before. Images made before that was recorded are not compared.

use crate::rebuild::error::RebuildError;
use holdfast_image::record::Ownership;
use holdfast_sys::unix_socket;

/// Whose the program's was.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// Who owned it.
    pub owner: Option<Ownership>,
    /// Who had made it.
    pub creator: Option<u32>,
}

impl Recorded {
    /// The user who may change what was found, and could not change the program's.
    pub fn another_user(&self, owner_now: u32, creator_now: u32) -> Option<u32> {
        let recorded = self.owner?;
        let known = [Some(recorded.user), self.creator, Some(unix_socket::effective_user())];
        [owner_now, creator_now].into_iter().find(|user| !known.contains(&Some(*user)))
    }

    /// Why it is not used. `found`: what it is; `option`: of ipcrm(1).
    pub fn refusal(&self, found: &str, other: u32, option: &str) -> RebuildError {
        let was = self
            .owner
            .map_or_else(String::new, |owner| format!(", and that of the program was user {}'s", owner.user));
        RebuildError::Refused(format!("{found} is user {other}'s{was}: remove it (ipcrm {option})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_its_owner_nor_its_maker_may_be_another_user() {
        let own = unix_socket::effective_user();
        let recorded = Recorded { owner: Some(Ownership { user: 70_001, group: 0 }), creator: Some(70_002) };
        let all = [(70_001, 70_002), (70_002, own), (70_001, 70_003), (70_003, own)];
        let judged = all.map(|(owner, creator)| recorded.another_user(owner, creator));
        assert_eq!(judged, [None, None, Some(70_003), Some(70_003)]);
        let said = recorded.refusal("System V message queue 5", 70_003, "-q 5").to_string();
        assert!(
            said.contains("user 70003's") && said.contains("user 70001's") && said.contains("ipcrm -q 5"),
            "{said}"
        );
        assert_eq!(Recorded { owner: None, creator: None }.another_user(70_003, 70_003), None);
    }
}
