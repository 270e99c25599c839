//! By which ids the processes of a job know themselves and each other ([`crate::pid_namespaces`]).
//!
//! Used by [`crate::fork_plan`] and `process::rebuild`. Invariants: pure; the record was checked.

use crate::record::ProcessRecord;

impl ProcessRecord {
    /// Its id as it knows itself.
    pub fn own_pid(&self) -> i32 {
        self.inner.map_or(self.pid, |inner| inner.pid)
    }

    /// The namespace that it is in, by the id of its process 1, if it is not that of the job.
    pub fn pid_namespace(&self) -> Option<i32> {
        self.inner.map(|inner| inner.init)
    }

    /// Whether it is process 1 of a namespace.
    pub fn is_init(&self) -> bool {
        self.pid_namespace() == Some(self.pid)
    }

    /// The id that it has for `other`, if any.
    pub fn known_to(&self, other: &ProcessRecord) -> Option<i32> {
        match other.pid_namespace() {
            None => Some(self.pid),
            Some(init) => self.inner.filter(|inner| inner.init == init).map(|inner| inner.pid),
        }
    }

    /// The process of this job that has an id, or has a child that has ended with it, as `other` knows it. `self`: the
    /// first of the job.
    pub fn id_for(&self, id: i32, other: &ProcessRecord) -> Option<i32> {
        if let Some(process) = self.processes().find(|process| process.pid == id) {
            return process.known_to(other);
        }
        let ended = |process: &ProcessRecord| process.zombies.iter().find(|zombie| zombie.pid == id).cloned();
        let (parent, zombie) = self.processes().find_map(|process| Some((process, ended(process)?)))?;
        match other.pid_namespace() {
            None => Some(id),
            Some(init) => zombie.inner_pid.filter(|_| parent.pid_namespace() == Some(init)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::pid_namespaces::InnerIds;
    use crate::record::ProcessRecord;
    use crate::record::{ThreadRecord, ZombieRecord};
    use crate::testing::{empty_record, empty_thread};

    fn check_all(first: &ProcessRecord) -> Result<(), String> {
        crate::pid_namespaces::check(&first.processes().map(ProcessRecord::ids).collect::<Vec<_>>())
    }

    /// 10 has made a namespace, whose process 1 is 11; 12 is in it, 13 is not.
    fn job() -> ProcessRecord {
        let of = |pid: i32, ppid: i32, own: Option<i32>| {
            let thread =
                ThreadRecord { tid: own.unwrap_or(pid), job_tid: own.map(|_| pid), ..empty_thread() };
            let inner = own.map(|own| InnerIds { init: 11, pid: own, pgid: 0, sid: 0 });
            ProcessRecord { pid, ppid, pgid: 10, sid: 5, inner, threads: vec![thread], ..empty_record() }
        };
        let mut first = of(10, 1, None);
        first.children_in = Some(11);
        first.others = vec![of(11, 10, Some(1)), of(12, 11, Some(2)), of(13, 10, None)];
        first
    }

    #[test]
    fn each_is_known_by_the_id_that_it_has_there() {
        let mut job = job();
        assert_eq!(check_all(&job), Ok(()));
        let comm = crate::bytes::Name::from("x");
        let zombie = ZombieRecord { pid: 14, inner_pid: Some(4), pgid: 0, sid: 0, status: 0, comm };
        job.others[0].zombies = vec![zombie];
        assert_eq!(check_all(&job), Ok(()));
        let (first, init, inside, outside) = (&job, &job.others[0], &job.others[1], &job.others[2]);
        assert!(init.is_init() && !inside.is_init() && (inside.own_pid(), outside.own_pid()) == (2, 13));
        assert_eq!([first, init, inside].map(|one| inside.known_to(one)), [Some(12), Some(2), Some(2)]);
        assert_eq!((outside.known_to(inside), outside.known_to(first)), (None, Some(13)));
        assert_eq!([14, 12, 13, 99].map(|id| job.id_for(id, init)), [Some(4), Some(2), None, None]);
        assert_eq!([14, 12, 13].map(|id| job.id_for(id, first)), [Some(14), Some(12), Some(13)]);
    }

    #[test]
    fn what_no_kernel_has_is_no_record() {
        let wrong = |change: &dyn Fn(&mut ProcessRecord)| {
            let mut job = job();
            change(&mut job);
            assert!(check_all(&job).is_err());
        };
        wrong(&|job| job.children_in = Some(12));
        wrong(&|job| job.others[0].inner = None);
        wrong(&|job| job.others[1].threads[0].tid = 3);
        wrong(&|job| job.others[1].threads[0].job_tid = None);
        wrong(&|job| job.others[2].threads[0].job_tid = Some(13));
        wrong(&|job| {
            let other = &mut job.others[1];
            other.inner = other.inner.map(|inner| InnerIds { pid: 1, ..inner });
            other.threads[0].tid = 1;
        });
        wrong(&|job| job.inner = Some(InnerIds { init: 10, pid: 1, pgid: 0, sid: 0 }));
        wrong(&|job| job.others[0].ppid = 12);
    }
}
