//! The other members of a gang, as a cut and a restart need them: one meeting after the other.
//!
//! Implemented by the agent, which has the connections; called by `cut` and by [`crate::rebuild`]. A gang is the
//! members of one job over several hosts, each with an agent of its own. What must hold: all members have the same
//! meetings in the same order, and none goes on before all have come. How it fails: [`GangError`]; the round is over
//! then, for every member.

use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

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
    /// Whether the round goes on.
    ///
    /// # Errors
    /// It is over: the next meeting would fail.
    fn goes_on(&self) -> Result<(), GangError>;
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
    /// At a restart: each has said which addresses its host had, and which it has now.
    Addresses,
    /// At a restart: each has said which ends of connections it has.
    Facts,
    /// At a restart: all addresses at which a connection between members is made anew can be connected to.
    Listening,
    /// All connections between members are there, with what was on its way.
    Connected,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Phase; 10] = [
        Phase::Prepared,
        Phase::Stopped,
        Phase::Drained,
        Phase::Captured,
        Phase::Committed,
        Phase::Named,
        Phase::Addresses,
        Phase::Facts,
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
            Phase::Addresses => "told of the addresses",
            Phase::Facts => "told of the connections",
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

impl GangError {
    fn of(member: usize, reason: impl Into<String>) -> GangError {
        let member = u32::try_from(member).ok();
        GangError { member, host: String::new(), reason: reason.into() }
    }
}

/// What one says in a meeting: lines of words.
pub(crate) type Lines = Vec<Vec<String>>;

/// A meeting, to which members say lines of words without blanks in them. Its own lines are among the answers.
///
/// # Errors
/// As [`Gang::meet`]; a member has said what is no text.
pub(crate) fn meet(
    gang: &dyn Gang,
    phase: Phase,
    own: &[Vec<String>],
    until: Instant,
) -> Result<Vec<Lines>, GangError> {
    let text: Vec<String> = own.iter().map(|words| words.join(" ")).collect();
    let within = until.saturating_duration_since(Instant::now());
    let said = gang.meet(phase, text.join("\n").as_bytes(), within)?;
    if said.len() != gang.members() as usize {
        let reason = format!("{} of {} members have said something", said.len(), gang.members());
        return Err(GangError { member: None, host: String::new(), reason });
    }
    let lines = |(member, bytes): (usize, Vec<u8>)| {
        let text = String::from_utf8(bytes).map_err(|_| not_understood(member))?;
        Ok(text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect())
    };
    said.into_iter().enumerate().map(lines).collect()
}

/// A member has said something else than is asked for.
pub(crate) fn not_understood(member: usize) -> GangError {
    GangError::of(member, "it has said something that is not understood: is it another version of Holdfast?")
}

/// What tells one host, and one network on it, from others. `process`: whose, by its name in /proc.
pub(crate) fn network_of(process: &str) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = fs::metadata(format!("/proc/{process}/ns/net")).map_or(0, |about| about.ino());
    format!("{}:{network}", boot.trim())
}

/// Whether an address means another place on each host.
pub(crate) fn is_of_one_host(address: &SocketAddr) -> bool {
    match address.ip().to_canonical() {
        IpAddr::V4(four) => four.is_loopback() || four.is_link_local(),
        IpAddr::V6(six) => six.is_loopback() || six.is_unicast_link_local(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod testing {
    use super::{Gang, GangError, Phase};
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::{Duration, Instant};

    /// A gang whose members are threads of this process.
    #[derive(Debug)]
    pub struct Thread {
        member: u32,
        members: u32,
        shared: Arc<Shared>,
    }

    #[derive(Debug, Default)]
    struct Shared {
        said: Mutex<HashMap<(Phase, u32), Vec<u8>>>,
        changed: Condvar,
        is_over: AtomicBool,
    }

    impl Thread {
        /// Another member is lost.
        pub fn lose(&self) {
            self.shared.is_over.store(true, Ordering::Relaxed);
        }
    }

    /// All members of one.
    pub fn threads(members: u32) -> Vec<Thread> {
        let shared = Arc::new(Shared::default());
        (0..members).map(|member| Thread { member, members, shared: Arc::clone(&shared) }).collect()
    }

    impl Gang for Thread {
        fn member(&self) -> u32 {
            self.member
        }

        fn members(&self) -> u32 {
            self.members
        }

        fn meet(&self, phase: Phase, own: &[u8], within: Duration) -> Result<Vec<Vec<u8>>, GangError> {
            let until = Instant::now() + within;
            let mut said = self.shared.said.lock().unwrap();
            said.insert((phase, self.member), own.to_vec());
            self.shared.changed.notify_all();
            loop {
                let of = |member| said.get(&(phase, member)).cloned();
                if let Some(all) = (0..self.members).map(of).collect() {
                    return Ok(all);
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(GangError::of(1 - self.member as usize, "it did not come"));
                }
                said = self.shared.changed.wait_timeout(said, left).unwrap().0;
            }
        }

        fn goes_on(&self) -> Result<(), GangError> {
            match self.shared.is_over.load(Ordering::Relaxed) {
                true => Err(GangError::of(1 - self.member as usize, "it was lost")),
                false => Ok(()),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn members_are_told_what_each_has_said() {
        let all = testing::threads(2);
        let until = Instant::now() + Duration::from_secs(60);
        let said = thread::scope(|scope| {
            let lines = [vec!["two".to_owned(), "words".to_owned()], vec!["one".to_owned()]];
            let beside = scope.spawn(|| meet(&all[1], Phase::Stopped, &[], until).unwrap());
            let own = meet(&all[0], Phase::Stopped, &lines, until).unwrap();
            assert_eq!(own, beside.join().unwrap());
            own
        });
        assert_eq!(said, [vec![vec!["two", "words"], vec!["one"]], vec![]]);
        all[1].meet(Phase::Drained, &[0xff], Duration::ZERO).unwrap_err();
        let error = meet(&all[0], Phase::Drained, &[], until).unwrap_err();
        assert!(error.to_string().starts_with("member 1: "), "{error}");
        let lost = meet(&all[0], Phase::Captured, &[], Instant::now()).unwrap_err();
        assert_eq!(lost.to_string(), "member 1: it did not come");
    }

    #[test]
    fn addresses_that_each_host_has_are_told_from_others() {
        let of_one_host = |text: &str| is_of_one_host(&text.parse().unwrap());
        for address in
            ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "[fe80::1]:1", "169.254.1.1:1"]
        {
            assert!(of_one_host(address), "{address}");
        }
        for address in ["10.0.0.1:1", "192.168.1.1:1", "[2001:db8::1]:1", "[fd00::1]:1"] {
            assert!(!of_one_host(address), "{address}");
        }
        assert_eq!(network_of("self"), network_of(&std::process::id().to_string()));
    }
}
