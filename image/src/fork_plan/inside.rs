//! Processes in pid namespaces of the job's own ([`crate::pid_namespaces`]): what of the plan is other for them.
//!
//! Part of the planner. A process is in the namespace for good into which it was born, and process 1 of one is made
//! first. Orphans fall to process 1 of theirs, as to a subreaper (kernel/exit.c, find_new_reaper). Groups and sessions
//! of processes outside have no number there: a process is born into them, and its maker is in them by then.

use super::{Group, Moment, Node, Planner, Who, leads_session};
use crate::pid_namespaces::Inside;

impl Planner<'_> {
    /// A process without an id where a node is.
    pub(super) fn nameless_at(&self, node: usize) -> Node {
        let inside = self.nodes[node].inside.map(|inside| Inside { pid: 0, ..inside });
        Node { inside, ..Node::new(Who::Helper, 0, false) }
    }

    /// Whether orphans fall to a process.
    pub(super) fn adopts(&self, at: usize) -> bool {
        self.all[at].attributes.child_subreaper || self.all[at].is_init()
    }

    /// A process that is gone and has led the session, or the group, of this one.
    pub(super) fn leader_of_old(&self, at: usize, group: bool) -> Option<Inside> {
        let inner = self.all[at].inner?;
        let pid = if group { inner.pgid } else { inner.sid };
        (pid != 0).then_some(Inside { init: inner.init, pid })
    }

    /// Who makes a process that leads a group no more: one that is where it was. `found`: who is in the session.
    pub(super) fn maker_inside(
        &self,
        found: (usize, Moment),
        inside: Option<Inside>,
        session: i32,
    ) -> Result<(usize, Moment), String> {
        let Some(inside) = inside else { return Ok(found) };
        if self.nodes[found.0].inside.is_some_and(|there| there.init == inside.init) {
            return Ok(found);
        }
        let init = self.places.get(&inside.init).filter(|init| self.all[**init].sid == session);
        let why = || format!("no process makes its group in session {session} and in its pid namespace");
        init.map(|init| (*init, Moment::After)).ok_or_else(why)
    }

    /// The group of a process that has no number where it is.
    pub(super) fn born_into(&mut self, at: usize) -> Result<Group, String> {
        let group = self.all[at].pgid;
        let why =
            || format!("its group {group} has no number in its pid namespace, and it is not born into it");
        let maker = self.nodes[at].maker.ok_or_else(why)?;
        if self.is_first_group(group, self.all[at].sid) {
            return Ok(Group::Inherited);
        }
        let Who::Process(above) = self.nodes[maker].who else { return Err(why()) };
        if self.all[above].pgid != group || self.moments[at] != Some(Moment::After) {
            return Err(why());
        }
        let joins = self.all[above].pid != group && self.all[above].inner.is_none();
        if joins {
            let mut leader = self.places.get(&group).copied();
            while let Some(node) = leader {
                if node == above {
                    return Err(why());
                }
                leader = self.nodes[node].maker;
            }
            self.nodes[maker].joins_early = !leads_session(self.all[above]);
        }
        Ok(Group::Inherited)
    }

    /// Whether a node is where its maker can make it.
    pub(super) fn check_inside(&self, node: usize) -> Result<(), String> {
        let Node { pid, inside, maker, .. } = &self.nodes[node];
        let of = |inside: &Option<Inside>| inside.map(|inside| inside.init);
        let above = maker.and_then(|maker| of(&self.nodes[maker].inside));
        let is_init = of(inside) == Some(*pid);
        match (of(inside), above) {
            (Some(init), Some(above)) if init == above && !is_init => Ok(()),
            (None, None) | (Some(_), None) if maker.is_some() || inside.is_none() => Ok(()),
            _ => Err(format!("process {pid} was not made in the pid namespace that it is in")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::super::{Birth, plan};
    use super::*;
    use crate::pid_namespaces::InnerIds;
    use crate::record::ProcessRecord;
    use crate::testing::empty_record;

    /// Ids of one: its own, of its parent, session and group; those inside, where process 1 is 11.
    type Ids = ((i32, i32, i32, i32), Option<(i32, i32, i32)>);

    fn job(all: &[Ids]) -> ProcessRecord {
        let mut all = all.iter().map(|&((pid, ppid, sid, pgid), inner)| {
            let inner = inner.map(|(pid, sid, pgid)| InnerIds { init: 11, pid, pgid, sid });
            ProcessRecord { pid, ppid, sid, pgid, inner, ..empty_record() }
        });
        let mut first = all.next().expect("a process");
        first.others = all.collect();
        first
    }

    fn find(made: &Birth, pid: i32) -> &Birth {
        made.all().into_iter().find(|birth| birth.pid == pid).expect("it is made")
    }

    const FIRST: Ids = ((10, 1, 5, 10), None);
    const INIT: Ids = ((11, 10, 5, 10), Some((1, 0, 0)));

    #[test]
    fn process_1_comes_first_and_orphans_fall_to_it() {
        let daemon = ((14, 11, 13, 13), Some((4, 3, 3)));
        let made = plan(&job(&[FIRST, ((15, 10, 5, 10), None), INIT, daemon])).expect("a plan");
        assert_eq!(made.after.iter().map(|child| child.pid).collect::<Vec<i32>>(), [15, 11]);
        let init = find(&made, 11);
        assert_eq!((init.inside, init.subreaper), (Some(Inside { init: 11, pid: 1 }), false));
        // Its session's leader is gone, and was inside.
        let leader = &init.after[0];
        assert_eq!((leader.pid, leader.inside), (13, Some(Inside { init: 11, pid: 3 })));
        assert!(leader.session && leader.after[0].pid == 14);
        assert_eq!((leader.after[0].group, init.known(&leader.after[0])), (Group::Joined(3), 4));
    }

    #[test]
    fn a_group_without_a_leader_is_made_inside() {
        let member = ((14, 11, 5, 12), Some((4, 0, 2)));
        let made = plan(&job(&[FIRST, INIT, member])).expect("a plan");
        let leader = find(&made, 12);
        assert_eq!((leader.inside, leader.group), (Some(Inside { init: 11, pid: 2 }), Group::Own));
        assert_eq!(find(&made, 14).group, Group::Joined(2));
    }

    #[test]
    fn a_group_outside_is_one_to_be_born_into() {
        // A pipeline of a shell: 12 leads, 13 makes the namespace.
        let pipeline = |leader_below: bool| {
            let leader = ((12, if leader_below { 13 } else { 10 }, 10, 12), None);
            let maker = ((13, 10, 10, 12), None);
            let (one, other) = if leader_below { (maker, leader) } else { (leader, maker) };
            job(&[((10, 1, 10, 10), None), one, other, ((11, 13, 10, 12), Some((1, 0, 0)))])
        };
        let made = plan(&pipeline(false)).expect("a plan");
        let maker = find(&made, 13);
        assert!(maker.joins_early && maker.group == Group::Joined(12));
        assert_eq!(find(&made, 11).group, Group::Inherited);
        assert!(plan(&pipeline(true)).is_err_and(|why| why.contains("no number in its pid namespace")));
    }

    #[test]
    fn what_cannot_be_made_inside_is_refused() {
        // A child outside of a process inside.
        assert!(plan(&job(&[FIRST, INIT, ((14, 11, 5, 10), None)])).is_err());
        // By a parent outside: it goes in for that.
        assert!(plan(&job(&[FIRST, INIT, ((14, 10, 5, 10), Some((3, 0, 0)))])).is_ok());
    }
}
