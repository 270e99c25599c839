//! Which processes and threads are still those of the image, and what of them cannot be put back.
//!
//! Pure but for the times of birth that /proc tells. What a process has open is the business of [`super::objects`],
//! its mappings that of [`super::mappings`].

use crate::job::target::Target;
use crate::refuse;
use holdfast_image::Epoch;
use holdfast_image::record::{HostRecord, OwnFolder, ProcessRecord, ThreadRecord};
use holdfast_image::refusal::{Refusal, Subject};
use holdfast_sys::{clock, procfs, unix_socket};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// One process, now and then.
pub struct Pair<'a> {
    /// Its id as the agent sees it.
    pub pid: i32,
    /// Its record of now.
    pub now: &'a ProcessRecord,
    /// That of the image.
    pub then: &'a ProcessRecord,
}

impl Pair<'_> {
    /// A refusal with the name of the process, where there are several.
    pub fn named(&self, refusal: Refusal, several: bool) -> Refusal {
        if several { refusal.of(self.pid, &refuse::name_of(self.pid)) } else { refusal }
    }

    /// About the process itself.
    fn refused(&self, reason: impl Into<String>) -> Refusal {
        let subject = Subject::Process { pid: self.then.pid, comm: refuse::name_of(self.pid) };
        Refusal { subject, reason: reason.into() }
    }
}

/// When the image was made, by the clock that counts from boot, and whether since this boot.
struct Moment {
    boottime_ns: u64,
}

impl Moment {
    /// `None`: before this host was started, or on another one.
    fn of(host: &HostRecord) -> Option<Moment> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        // What both clocks differ by is the time for which the host has slept.
        let slept = clock::now_ns(libc::CLOCK_BOOTTIME).saturating_sub(clock::monotonic_ns());
        let boottime_ns = host.monotonic_ns.saturating_add(slept);
        (boot.trim() == host.boot_id).then_some(Moment { boottime_ns })
    }

    /// Whether a thread was born before.
    fn is_after_birth_of(&self, pid: i32, tid: i32) -> bool {
        /// Ticks of proc_pid_stat(5) per second (USER_HZ), and the place of field 22, counted from the third.
        const TICKS: u64 = 100;
        const START: usize = 19;
        let stat = procfs::stat_fields(pid, tid).ok();
        let start = stat.and_then(|fields| fields.get(START)?.parse::<u64>().ok());
        start.is_some_and(|start| start.saturating_mul(1_000_000_000 / TICKS) <= self.boottime_ns)
    }
}

/// Pairs the processes of a job that is held with those of the image, in the order of the image.
///
/// # Errors
/// Others are there, or some are missing; threads likewise.
pub fn processes<'a>(
    (now, targets): (&'a ProcessRecord, &[Target]),
    then: &'a ProcessRecord,
    epoch: Epoch,
) -> Result<Vec<Pair<'a>>, Vec<Refusal>> {
    let refused =
        |pid: i32, comm: String, reason: String| Refusal { subject: Subject::Process { pid, comm }, reason };
    let Some(moment) = Moment::of(&then.host) else {
        let what = format!("image {epoch} was made before this host was started, or on another one");
        return Err(vec![refused(now.pid, String::new(), what)]);
    };
    let outer: BTreeMap<u32, i32> = targets.iter().map(|target| (target.space, target.pid)).collect();
    let mut living: BTreeMap<i32, &ProcessRecord> =
        now.processes().map(|process| (process.pid, process)).collect();
    let (mut pairs, mut refusals) = (Vec::new(), Vec::new());
    for then in then.processes() {
        let found = living.remove(&then.pid);
        let Some((now, pid)) = found.and_then(|now| Some((now, *outer.get(&now.space)?))) else {
            let comm = then.threads.first().map(|leader| leader.comm.to_string()).unwrap_or_default();
            refusals.push(refused(then.pid, comm, format!("it has ended since image {epoch}")));
            continue;
        };
        let pair = Pair { pid, now, then };
        if now.space != then.space || !moment.is_after_birth_of(pid, pid) {
            refusals.push(pair.refused(format!("it was made since image {epoch}, or restarted")));
        } else if now.inject != then.inject || now.exe.path != then.exe.path {
            refusals.push(pair.refused(format!("it has executed another program since image {epoch}")));
        } else {
            pairs.push(pair);
        }
    }
    for (pid, record) in living {
        let comm = outer.get(&record.space).map(|pid| refuse::name_of(*pid)).unwrap_or_default();
        refusals.push(refused(pid, comm, format!("it was made since image {epoch}")));
    }
    let several = pairs.len() > 1;
    for pair in &pairs {
        let found = threads(pair, &moment, epoch);
        refusals.extend(found.into_iter().map(|refusal| pair.named(refusal, several)));
    }
    refusals.extend(job_control(&pairs));
    if refusals.is_empty() { Ok(pairs) } else { Err(refusals) }
}

/// Who has stopped whom (job control) is not changed. If all of them stand, and none did, the user has stopped the job,
/// and it stays so.
fn job_control(pairs: &[Pair<'_>]) -> Vec<Refusal> {
    let is_stopped = |record: &ProcessRecord| record.signals.job_stopped;
    if pairs.iter().all(|pair| is_stopped(pair.now)) && !pairs.iter().any(|pair| is_stopped(pair.then)) {
        return Vec::new();
    }
    let state = |record: &ProcessRecord| {
        (record.signals.job_stopped, record.signals.stop_signal, record.signals.stop_told)
    };
    let refused = |pair: &Pair<'_>| match (is_stopped(pair.now), is_stopped(pair.then)) {
        (true, false) => pair.refused("job control has stopped it since: continue it first (SIGCONT)"),
        (false, true) => pair.refused("job control had stopped it, and it was continued since"),
        _ => {
            pair.refused("job control has stopped it otherwise, or its parent knows more of that, than then")
        }
    };
    pairs.iter().filter(|pair| state(pair.now) != state(pair.then)).map(refused).collect()
}

/// Threads that are there only now, or only then.
fn threads(pair: &Pair<'_>, moment: &Moment, epoch: Epoch) -> Vec<Refusal> {
    let ids = |record: &ProcessRecord| -> BTreeSet<i32> {
        record.threads.iter().map(|thread| thread.tid).collect()
    };
    let (now, then) = (ids(pair.now), ids(pair.then));
    let refused = |tid: &i32, reason: String| Refusal { subject: Subject::Thread { tid: *tid }, reason };
    let ended = then.difference(&now).map(|tid| refused(tid, format!("it has ended since image {epoch}")));
    let made = now.difference(&then).map(|tid| refused(tid, format!("it was made since image {epoch}")));
    let outer = outer_ids(pair.pid);
    let young = now.intersection(&then).filter(|tid| {
        let outer = outer.get(tid).copied().unwrap_or(**tid);
        !moment.is_after_birth_of(pair.pid, outer)
    });
    let young = young.map(|tid| refused(tid, format!("it was made since image {epoch}, with an old id")));
    ended.chain(made).chain(young).collect()
}

/// The ids of the threads of a process as we see them, by those that it knows.
pub fn outer_ids(pid: i32) -> BTreeMap<i32, i32> {
    let inner = |tid: i32| {
        let status = procfs::Status::read(pid, tid).ok();
        (status.and_then(|status| status.innermost("NSpid")).unwrap_or(tid), tid)
    };
    procfs::tasks(pid).unwrap_or_default().into_iter().map(inner).collect()
}

/// What of a process and its threads is not as it was, and cannot be put back.
pub fn process(pair: &Pair<'_>, epoch: Epoch) -> Vec<Refusal> {
    let (now, then) = (pair.now, pair.then);
    let mut found = Vec::new();
    let mut differs = |differs: bool, what: String| {
        if differs {
            found.push(pair.refused(what));
        }
    };
    let since = format!("since image {epoch}");
    differs(
        (&now.cwd, &now.cwd_inode, now.cwd_deleted) != (&then.cwd, &then.cwd_inode, then.cwd_deleted),
        format!("its working folder is {} now, and was {} in image {epoch}", now.cwd, then.cwd),
    );
    differs(now.root != then.root, format!("its root directory (chroot) is another one {since}"));
    differs(
        (now.inner, now.children_in) != (then.inner, then.children_in),
        format!("its ids in its pid namespace are others {since}"),
    );
    differs(
        (&now.namespaces, &now.made_namespaces) != (&then.namespaces, &then.made_namespaces),
        format!("its namespaces, or what is in them, are others {since}"),
    );
    let confined = |record: &ProcessRecord| record.threads.iter().any(|thread| !thread.confinement.is_none());
    differs(
        confined(now) || confined(then),
        "it is under seccomp filters of its own, which a rollback cannot take from it: restart it".into(),
    );
    let folders = |record: &ProcessRecord| -> Vec<(i32, OwnFolder)> {
        record.threads.iter().filter_map(|thread| Some((thread.tid, thread.folder.clone()?))).collect()
    };
    differs(
        folders(now) != folders(then),
        format!("a thread of it has another directory or umask of its own (unshare CLONE_FS) {since}"),
    );
    differs(
        now.shares_folder != then.shares_folder,
        format!("it shares its directory with its parent (clone CLONE_FS), or does not any more, {since}"),
    );
    let has_no_main = |record: &ProcessRecord| record.threads.iter().any(|thread| thread.ended.is_some());
    differs(
        has_no_main(now) || has_no_main(then),
        "its main thread has ended while others run, without which a rollback cannot work: restart it".into(),
    );
    differs(
        now.domain != then.domain,
        format!("it has gone into a Landlock domain {since}, out of which a rollback cannot take it"),
    );
    differs(now.ppid != then.ppid, format!("its parent has ended {since}"));
    differs(
        (now.pgid, now.sid) != (then.pgid, then.sid),
        format!("it has gone into another process group or session {since}"),
    );
    differs(now.zombies != then.zombies, format!("children of it have ended {since}, or were waited for"));
    differs(now.rights != then.rights, format!("it has become another user, or has other rights, {since}"));
    differs(now.attributes != then.attributes, format!("it has changed its settings (prctl) {since}"));
    differs(
        !now.aio.is_empty() || !then.aio.is_empty(),
        "it has contexts of Linux AIO, which only a restart puts back".to_owned(),
    );
    differs(now.ldt != then.ldt, format!("its local descriptor table is another one {since}"));
    differs(
        (now.flags.no_new_privs, now.flags.login_user) != (then.flags.no_new_privs, then.flags.login_user),
        format!("it has given up privileges (no_new_privs) or logged in {since}"),
    );
    let hard = |record: &ProcessRecord| -> Vec<(u32, u64)> {
        record.limits.iter().map(|limit| (limit.resource, limit.hard)).collect()
    };
    differs(hard(now) != hard(then), format!("its hard limits (setrlimit) were changed {since}"));
    let timers = |record: &ProcessRecord| -> Vec<(i32, i32, i32, i32, u64, i32)> {
        let all = record.posix_timers.iter();
        all.map(|one| (one.id, one.clock, one.notify, one.signal, one.value, one.tid)).collect()
    };
    differs(timers(now) != timers(then), format!("it has made or deleted timers (timer_create) {since}"));
    let cuda = |record: &ProcessRecord| {
        record.cuda.as_ref().map(|cuda| (cuda.library.clone(), cuda.devices.clone()))
    };
    differs(
        cuda(now) != cuda(then),
        format!("it has begun to use CUDA, or another driver or device, {since}"),
    );
    let kept = |record: &ProcessRecord| {
        let kept = record.cuda.as_ref().and_then(|cuda| cuda.kept.as_ref());
        kept.map(|kept| (kept.key, kept.blocks.clone()))
    };
    differs(
        kept(now) != kept(then),
        format!("its device memory is not in the same blocks as then: it has changed {since}"),
    );
    let names = then.threads.iter().filter_map(|then| {
        let now = now.threads.iter().find(|now| now.tid == then.tid)?;
        thread(now, then, &since)
    });
    found.extend(names);
    found
}

fn thread(now: &ThreadRecord, then: &ThreadRecord, since: &str) -> Option<Refusal> {
    let is_root = unix_socket::effective_user() == 0;
    let what = if !is_root && !may_be_scheduled(now, then) {
        "it has given up a part of its share of the processors (nice, SCHED_IDLE, real time), which only root gives it,"
    } else if now.rseq != then.rseq {
        "its area for restartable sequences is another one"
    } else if now.attributes != then.attributes {
        "it has changed its settings (prctl, sched_setattr)"
    } else {
        return None;
    };
    Some(Refusal { subject: Subject::Thread { tid: then.tid }, reason: format!("{what} {since}") })
}

/// Whether a thread may be given its policy and nice value again by one who is not root (sched(7)).
fn may_be_scheduled(now: &ThreadRecord, then: &ThreadRecord) -> bool {
    let same = (now.policy, now.priority) == (then.policy, then.priority);
    let (other, batch) = (libc::SCHED_OTHER.cast_unsigned(), libc::SCHED_BATCH.cast_unsigned());
    let plain = |policy: u32| policy == other || policy == batch;
    now.nice <= then.nice
        && (same || plain(now.policy))
        && (same || plain(then.policy) || then.policy == libc::SCHED_IDLE.cast_unsigned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::record;
    use crate::track::tracking::Tracking;
    use holdfast_image::bytes::Name;
    use holdfast_image::record::InjectArea;
    use std::sync::Arc;

    const EPOCH: Epoch = Epoch(3);

    /// This process, as an image of now has it.
    fn own() -> (ProcessRecord, Target) {
        let pid = std::process::id().cast_signed();
        let mut own = record(Vec::new());
        own.pid = pid;
        own.host.boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned();
        own.host.monotonic_ns = clock::monotonic_ns();
        let tracking = Arc::new(Tracking::new(None));
        (own, Target { pid, space: 0, area: InjectArea::default(), tracking })
    }

    fn lines(found: Result<Vec<Pair<'_>>, Vec<Refusal>>) -> Vec<String> {
        found.err().into_iter().flatten().map(|refusal| refusal.to_string()).collect()
    }

    #[test]
    fn only_the_very_processes_of_the_image_go_back() {
        let (then, target) = own();
        let targets = [target];
        assert!(processes((&then, &targets), &then, EPOCH).is_ok());
        let other = ProcessRecord { pid: 7, space: 1, ..then.clone() };
        let more = ProcessRecord { others: vec![other], ..then.clone() };
        let said = lines(processes((&then, &targets), &more, EPOCH));
        assert!(
            said.len() == 1 && said[0].contains("process 7") && said[0].contains("has ended"),
            "{said:?}"
        );
        let said = lines(processes((&more, &targets), &then, EPOCH));
        assert!(said.len() == 1 && said[0].contains("process 7") && said[0].contains("was made"), "{said:?}");
        let mut old = then.clone();
        old.host.monotonic_ns = 1;
        let said = lines(processes((&then, &targets), &old, EPOCH));
        assert!(said[0].contains("made since image 3"), "{said:?}");
        old.host.boot_id.push('x');
        let said = lines(processes((&then, &targets), &old, EPOCH));
        assert!(said[0].contains("before this host was started"), "{said:?}");
        let executed = ProcessRecord { inject: InjectArea { code_len: 1, ..then.inject }, ..then.clone() };
        let said = lines(processes((&executed, &targets), &then, EPOCH));
        assert!(said[0].contains("executed another program"), "{said:?}");
    }

    #[test]
    fn what_cannot_be_put_back_is_named() {
        let (then, target) = own();
        let said = |now: &ProcessRecord| -> Vec<String> {
            let pair = Pair { pid: target.pid, now, then: &then };
            process(&pair, EPOCH).iter().map(ToString::to_string).collect()
        };
        assert_eq!(said(&then), [""; 0]);
        let moved = said(&ProcessRecord { cwd: Name::from("/tmp"), ..then.clone() });
        assert!(moved.len() == 1 && moved[0].contains("/tmp now, and was / in image 3"), "{moved:?}");
        assert!(said(&ProcessRecord { sid: 99, ..then.clone() })[0].contains("session"));
        let mut now = then.clone();
        now.flags.no_new_privs = true;
        assert!(said(&now)[0].contains("no_new_privs"));
    }

    #[test]
    fn job_control_is_left_to_who_has_it() {
        let (then, target) = own();
        let mut now = then.clone();
        (now.signals.job_stopped, now.signals.stop_signal) = (true, libc::SIGSTOP);
        let pair = |now, then| Pair { pid: target.pid, now, then };
        assert!(job_control(&[pair(&now, &then)]).is_empty(), "the user has stopped all of it");
        assert!(job_control(&[pair(&now, &now)]).is_empty());
        let said = job_control(&[pair(&then, &now)]);
        assert!(said[0].to_string().contains("continued since"), "{said:?}");
        let said = job_control(&[pair(&then, &then), pair(&now, &then)]);
        assert!(said.len() == 1 && said[0].to_string().contains("SIGCONT"), "{said:?}");
    }
}
