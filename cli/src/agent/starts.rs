//! Hosts that `holdfast rsh` asks for, until their members are there.
//!
//! Kept by the loop, for `event_loop/remote.rs`. Invariant: one member is started at a time. What is under way when the
//! agent ends is ended, too.

use crate::gang::ssh::Ssh;
use holdfast_sys::clock;
use std::collections::VecDeque;
use std::sync::Arc;

/// A host that is asked for.
pub struct Wanted {
    /// In the words of ssh.
    pub host: String,
    /// For ssh.
    pub options: Vec<String>,
    /// Who has asked.
    pub clients: Vec<u64>,
}

/// Hosts that are asked for; the first is being started.
#[derive(Default)]
pub struct Starts {
    /// In the order of asking.
    pub wanted: VecDeque<Wanted>,
    /// The member that is being started.
    pub under_way: Option<(u32, Arc<Ssh>)>,
    last: u64,
}

impl Starts {
    /// What tells the next start from all others, those of agents before included.
    pub fn next(&mut self) -> u64 {
        self.last = clock::realtime_ns().max(self.last + 1);
        self.last
    }

    /// Whether a member is being started.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether a client waits for a host.
    pub fn has(&self, client: u64) -> bool {
        self.wanted.iter().any(|wanted| wanted.clients.contains(&client))
    }
}

impl Drop for Starts {
    fn drop(&mut self) {
        self.under_way.iter().for_each(|(_, ssh)| ssh.end());
    }
}
