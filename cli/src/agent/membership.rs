//! The gang that the job is a member of: the others, and what the store has of it.
//!
//! Made at the agent's start, and kept as long as it lives.

use super::guard::Guard;
use crate::gang::added::Added;
use crate::gang::folder::GangFolder;
use crate::gang::seat::Seat;
use std::sync::Arc;

/// See the head of the file.
pub struct Membership {
    /// The others.
    pub seat: Arc<Seat>,
    /// What the store has of the gang.
    pub folder: GangFolder,
    /// Of the leader of an open gang: the members that were added.
    pub added: Option<Arc<Added>>,
    /// What the hosts keep of each other's images.
    pub guard: Option<Arc<Guard>>,
}

impl Membership {
    /// Whether this agent is the one in the middle.
    pub fn is_leader(&self) -> bool {
        self.seat.place().is_leader()
    }

    /// The program has ended; `failed`: and all are to be restarted.
    pub fn leave(&self, failed: bool) {
        if failed {
            self.seat.say_fails();
        }
        self.guard.iter().for_each(|guard| guard.leave());
        self.seat.leave();
        if self.is_leader() {
            self.folder.withdraw();
        }
    }
}
