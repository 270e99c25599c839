//! The other members of a gang, as a cut and a restart need them: one meeting after the other.
//!
//! Implemented by the agent, which has the connections; called by `cut` and by [`crate::rebuild`]. A gang is the
//! members of one job over several hosts, each with an agent of its own. What must hold: all members have the same
//! meetings in the same order, and none goes on before all have come. How it fails: [`GangError`]; the round is over
//! then, for every member.

use std::fmt;
use std::time::Duration;

/// The members, as one of them sees them.
pub trait Gang: fmt::Debug + Send + Sync {
    /// This member's number; members of a gang are 0, 1, …
    fn member(&self) -> u32;
    /// How many there are.
    fn members(&self) -> u32;
    /// Says `own` to all members and waits for what each of them says in the same phase; in order of members, own
    /// included.
    ///
    /// # Errors
    /// A member failed its part (its reason), was lost, or did not come within `within`; then no member's meeting of
    /// this round succeeds any more, and every member's later meetings of the round fail at once.
    fn meet(&self, phase: Phase, own: &[u8], within: Duration) -> Result<Vec<Vec<u8>>, GangError>;
}

/// What all members have done when they meet; in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// What can be stored before the stop is.
    Prepared,
    /// All processes are stopped.
    Stopped,
    /// What was on its way between members has come.
    Drained,
    /// The cut has all that it needs of the stopped processes.
    Captured,
    /// Its image is committed.
    Committed,
    /// The image of the gang is there, or why not is known.
    Named,
    /// At a restart: all addresses at which a connection between members is made anew can be connected to.
    Listening,
    /// All connections between members are there, with what was on its way.
    Connected,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Phase; 8] = [
        Phase::Prepared,
        Phase::Stopped,
        Phase::Drained,
        Phase::Captured,
        Phase::Committed,
        Phase::Named,
        Phase::Listening,
        Phase::Connected,
    ];
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Prepared => "prepared",
            Phase::Stopped => "stopped",
            Phase::Drained => "drained",
            Phase::Captured => "captured",
            Phase::Committed => "committed",
            Phase::Named => "told of the image of the gang",
            Phase::Listening => "listening",
            Phase::Connected => "connected",
        })
    }
}

/// Why a meeting did not come about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GangError {
    /// The member that is the reason, where it is known.
    pub member: Option<u32>,
    /// Its host; may be empty.
    pub host: String,
    /// What is wrong there.
    pub reason: String,
}

impl fmt::Display for GangError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.member, self.host.as_str()) {
            (Some(member), "") => write!(f, "member {member}: {}", self.reason),
            (Some(member), host) => write!(f, "member {member} on {host}: {}", self.reason),
            (None, "") => write!(f, "{}", self.reason),
            (None, host) => write!(f, "{host}: {}", self.reason),
        }
    }
}

impl std::error::Error for GangError {}
