//! Who descends from the job's processes, known from birth: in root's agents, where the kernel tells of all forks.
//!
//! A process that has become another user, whose environment does not name the job any more, and whose parent has
//! ended, is tied to the job by nothing else. Listened to by a thread of its own, some moments after the events, so
//! that a storm of forks costs few wake-ups; asked by `orphans` before and inside a stop, and by the agent when no
//! process is left. What must hold: events are taken in their order, under the lock; what is known of an id goes when
//! the id is given again. What is lost when too many came at once is said in the log.

use crate::stop::interrupt;
use holdfast_sys::proc_events::{ProcEvent, ProcEvents};
use holdfast_sys::{poll, unix_socket};
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Between an event and the look at all that have come since.
const MOMENT: Duration = Duration::from_millis(20);
/// How long, and how many, forks of processes are remembered that may turn out to be of the job: by their registration.
const RECENT: Duration = Duration::from_secs(5);
const MOST_RECENT: usize = 4096;

/// See the head of the file.
#[derive(Debug)]
pub struct Births {
    events: ProcEvents,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Living processes of the job: members, and what was born below one.
    of_job: BTreeSet<i32>,
    /// Parent and child, of other processes.
    recent: VecDeque<(Instant, i32, i32)>,
}

impl Births {
    /// Listens, if the caller is root and the kernel tells.
    pub fn listen() -> Option<Arc<Births>> {
        if unix_socket::effective_user() != 0 {
            return None;
        }
        let events = match ProcEvents::listen() {
            Ok(events) => events,
            Err(error) => {
                tracing::info!("the kernel does not tell of forks: {error}");
                return None;
            }
        };
        let births = Arc::new(Births { events, seen: Mutex::default() });
        let listener = Arc::clone(&births);
        let listen = move || {
            while poll::readable(&[listener.events.as_fd()], None).is_ok() {
                thread::sleep(MOMENT);
                listener.take(&mut listener.seen.lock());
            }
        };
        thread::Builder::new().name("births".into()).spawn(listen).ok()?;
        Some(births)
    }

    /// A process is of the job, as is known otherwise.
    pub fn member(&self, pid: i32) {
        let mut seen = self.seen.lock();
        self.take(&mut seen);
        seen.member(pid);
    }

    /// Whether a process was born below one of the job.
    pub fn have(&self, pid: i32) -> bool {
        let mut seen = self.seen.lock();
        self.take(&mut seen);
        seen.of_job.contains(&pid)
    }

    /// All that live.
    pub fn all(&self) -> Vec<i32> {
        let mut seen = self.seen.lock();
        self.take(&mut seen);
        seen.of_job.iter().copied().collect()
    }

    /// Takes all events that wait.
    fn take(&self, seen: &mut Seen) {
        loop {
            match self.events.next() {
                Ok(None) => return,
                Ok(Some(event)) => seen.note(event, Instant::now()),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    tracing::warn!(
                        "more processes were made at once than the kernel could tell of: one of the job's that \
                         becomes another user and loses its environment and its parent may be left out"
                    );
                    seen.of_job.retain(|pid| !interrupt::has_ended(*pid));
                    seen.recent.clear();
                }
                Err(_) => return,
            }
        }
    }
}

impl Seen {
    fn note(&mut self, event: ProcEvent, now: Instant) {
        if let ProcEvent::Forked { child, .. } = event {
            // What is known of its id is another process's.
            self.of_job.remove(&child);
            self.recent.retain(|(_, one, other)| ![*one, *other].contains(&child));
        }
        match event {
            ProcEvent::Forked { parent, child } if self.of_job.contains(&parent) => {
                self.of_job.insert(child);
            }
            ProcEvent::Forked { parent, child } => {
                self.recent.push_back((now, parent, child));
                let is_old = |(when, ..): &(Instant, i32, i32)| now.duration_since(*when) > RECENT;
                while self.recent.len() > MOST_RECENT || self.recent.front().is_some_and(is_old) {
                    self.recent.pop_front();
                }
            }
            // Others of its threads may go on.
            ProcEvent::Ended { pid } if self.of_job.contains(&pid) && interrupt::has_ended(pid) => {
                self.of_job.remove(&pid);
            }
            ProcEvent::Ended { .. } | ProcEvent::Other => {}
        }
    }

    /// One that is known otherwise, and what it has made before that was known.
    fn member(&mut self, pid: i32) {
        if !self.of_job.insert(pid) {
            return;
        }
        for (_, parent, child) in &self.recent {
            if self.of_job.contains(parent) {
                self.of_job.insert(*child);
            }
        }
        self.of_job.retain(|pid| !interrupt::has_ended(*pid));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    #[test]
    fn what_is_born_below_a_member_is_of_the_job_until_it_ends() {
        let mut living = [sleeper(), sleeper(), sleeper()];
        let [one, two, three] = living.each_ref().map(|child| child.id().cast_signed());
        let (mut seen, now) = (Seen::default(), Instant::now());
        // Before it is known whose they are, and past one that has ended meanwhile.
        seen.note(ProcEvent::Forked { parent: one, child: i32::MAX }, now);
        seen.note(ProcEvent::Forked { parent: i32::MAX, child: two }, now);
        seen.member(one);
        assert_eq!(seen.of_job, BTreeSet::from([one, two]));
        seen.note(ProcEvent::Forked { parent: two, child: three }, now);
        seen.note(ProcEvent::Ended { pid: two }, now);
        assert_eq!(seen.of_job, BTreeSet::from([one, two, three]), "a thread of it lives");
        for child in &mut living {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        seen.note(ProcEvent::Ended { pid: two }, now);
        assert_eq!(seen.of_job, BTreeSet::from([one, three]));
        // The id is another one's now.
        seen.note(ProcEvent::Forked { parent: 1, child: three }, now);
        assert_eq!(seen.of_job, BTreeSet::from([one]));
    }

    #[test]
    fn forks_of_others_are_forgotten() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        for child in 0..10_000 {
            seen.note(ProcEvent::Forked { parent: 1, child }, now);
        }
        assert_eq!(seen.recent.len(), MOST_RECENT);
        seen.note(ProcEvent::Forked { parent: 1, child: 7 }, now + RECENT * 2);
        assert_eq!(seen.recent.len(), 1);
    }
}
