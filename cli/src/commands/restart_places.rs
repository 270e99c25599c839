//! On which hosts the members of a gang are restarted (`--restart-on-failure` under `--gang ssh`).
//!
//! Used by [`super::restarts`]. A host that ssh does not reach is replaced by the next of `--spare`; when none of them
//! is left, by one that was replaced before and is reached again. Invariant: the first host, that of the command,
//! stays. Fails by: a host is not reached, and no other one is; it may be later.

use crate::exit::Failure;
use std::collections::{BTreeMap, VecDeque};

/// Which of some hosts are not reached.
pub type Unreached<'a> = &'a dyn Fn(&[String]) -> Result<Vec<String>, Failure>;

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Places {
    /// Hosts that were not used yet.
    spares: VecDeque<String>,
    /// The hosts that have taken the places of others.
    moved: BTreeMap<String, String>,
    /// Those that were replaced, in that order.
    replaced: Vec<String>,
}

/// Where the members are to be.
#[derive(Debug)]
pub enum Chosen {
    /// On these hosts.
    On(Vec<String>),
    /// No host is left for this one.
    NoneFor(String),
}

impl Places {
    /// With these spare hosts.
    pub fn of(spares: &[String]) -> Places {
        Places { spares: spares.iter().cloned().collect(), ..Places::default() }
    }

    /// Where the members are to be that were on these hosts.
    ///
    /// # Errors
    /// The hosts cannot be asked.
    pub fn choose(
        &mut self,
        were: &[String],
        unreached: Unreached<'_>,
        say: &dyn Fn(&str),
    ) -> Result<Chosen, Failure> {
        let mut now: Vec<String> =
            were.iter().map(|host| self.moved.get(host).unwrap_or(host).clone()).collect();
        loop {
            let mut gone = unreached(now.get(1..).unwrap_or_default())?;
            // A host of two members is asked twice.
            gone.sort_unstable();
            gone.dedup();
            if gone.is_empty() {
                return Ok(Chosen::On(now));
            }
            for lost in gone {
                let Some(other) = self.next(&now, unreached)? else { return Ok(Chosen::NoneFor(lost)) };
                say(&format!("ssh does not reach {lost}: {other} takes its place"));
                // It is itself again.
                self.moved.remove(&other);
                for (at, host) in now.iter_mut().enumerate().skip(1).filter(|(_, host)| **host == lost) {
                    host.clone_from(&other);
                    if let Some(was) = were.get(at) {
                        self.moved.insert(was.clone(), other.clone());
                    }
                }
                self.replaced.push(lost);
            }
        }
    }

    fn next(&mut self, now: &[String], unreached: Unreached<'_>) -> Result<Option<String>, Failure> {
        if let Some(spare) = self.spares.pop_front() {
            return Ok(Some(spare));
        }
        let gone = unreached(&self.replaced)?;
        let is_free = |host: &String| !gone.contains(host) && !now.contains(host);
        let found = self.replaced.iter().position(is_free);
        Ok(found.map(|at| self.replaced.remove(at)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn choose(places: &mut Places, were: &str, down: &str) -> String {
        let down = hosts(down);
        let unreached = |asked: &[String]| {
            Ok(asked.iter().filter(|host| down.contains(host)).cloned().collect::<Vec<_>>())
        };
        match places.choose(&hosts(were), &unreached, &|_| ()).unwrap() {
            Chosen::On(now) => now.join(" "),
            Chosen::NoneFor(host) => format!("none for {host}"),
        }
    }

    #[test]
    fn a_host_that_is_lost_is_replaced_and_may_be_the_spare_of_another_one_later() {
        let mut places = Places::of(&hosts("d e"));
        assert_eq!(choose(&mut places, "a b b c", ""), "a b b c");
        assert_eq!(
            choose(&mut places, "a b b c", "b a"),
            "a d d c",
            "both of its members; a runs the command"
        );
        assert_eq!(choose(&mut places, "a b b c", ""), "a d d c", "it stays so, whatever b does");
        // Images since then name the new hosts.
        assert_eq!(choose(&mut places, "a d d c", "b c"), "a d d e");
        assert_eq!(choose(&mut places, "a d d e", "b d"), "a c c e", "b is not there, c is again");
        assert_eq!(choose(&mut places, "a c c e", "b c d"), "none for c");
        assert_eq!(choose(&mut places, "a c c e", "c"), "a b b e", "b is there again");
    }

    #[test]
    fn a_spare_host_that_is_not_there_is_no_spare() {
        let mut places = Places::of(&hosts("c d"));
        assert_eq!(choose(&mut places, "a b", "b c"), "a d");
        assert_eq!(choose(&mut Places::of(&[]), "a b", "b"), "none for b");
    }
}
