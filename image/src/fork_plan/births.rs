//! The end of a plan: whether all come out as they were, and the tree of births.
//!
//! Part of the planner, when all nodes are placed.

use super::{Birth, DEEPEST, Node, Planner, Who};
use std::collections::BTreeSet;

impl Planner<'_> {
    /// Every process is made, and orphans fall to whom they must.
    pub(super) fn check_orphans(&self) -> Result<(), String> {
        let mut made = BTreeSet::new();
        let mut open = vec![(0, 0)];
        while let Some((node, depth)) = open.pop() {
            let Node { pid, before, after, .. } = &self.nodes[node];
            if depth > DEEPEST {
                return Err(format!("process {pid} is more than {DEEPEST} generations below the first"));
            }
            made.insert(node);
            self.check_inside(node)?;
            open.extend(before.iter().chain(after).map(|child| (*child, depth + 1)));
        }
        if let Some(at) = (0..self.all.len()).find(|at| !made.contains(at)) {
            return Err(format!(
                "process {}, which was made by one that has ended, is in a session that a descendant of it leads",
                self.all[at].pid
            ));
        }
        for &(orphan, heir) in &self.orphans {
            let mut above = self.nodes[orphan].maker;
            let is_init =
                |node: usize| matches!(self.nodes[node].who, Who::Process(at) if self.all[at].is_init());
            while let Some(node) = above
                && !self.nodes[node].subreaper
                && !is_init(node)
            {
                above = self.nodes[node].maker;
            }
            if above != heir {
                return Err(format!(
                    "process {} has lost its parent, and would fall to another process than it did: there are several \
                     subreapers (PR_SET_CHILD_SUBREAPER) in the job",
                    self.nodes[orphan].pid
                ));
            }
        }
        Ok(())
    }

    pub(super) fn birth(&self, node: usize) -> Birth {
        let own = &self.nodes[node];
        let Node { who, before, after, .. } = own;
        // Process 1 of a pid namespace is the first there.
        let births = |nodes: &[usize]| {
            let mut births: Vec<Birth> = nodes.iter().map(|node| self.birth(*node)).collect();
            births.sort_by_key(|birth| birth.inside.is_some_and(|inside| inside.init != birth.pid));
            births
        };
        Birth {
            who: who.clone(),
            pid: own.pid,
            inside: own.inside,
            children_in: own.children_in,
            session: own.session,
            group: own.group,
            joins_early: own.joins_early,
            subreaper: own.subreaper,
            before: births(before),
            after: births(after),
        }
    }
}
