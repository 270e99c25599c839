//! `holdfast check`: what of the program could not be checkpointed, looked up in a thread of its own while the agent's
//! loop goes on.
//!
//! Used by the loop. What must hold: one look at a time, however many ask, and no request gets what was found before
//! the request; every request gets one answer. Fails by: [`Reply::Error`] with the reason.

use super::context::JobContext;
use super::cuda::Cuda;
use super::cut;
use super::error::CheckpointError;
use super::estimate;
use super::events::{Event, Reporter};
use super::headroom::Headroom;
use super::processes::Processes;
use crate::inherited_fds::InheritedFd;
use crate::protected;
use crate::settings::OutsideChoice;
use holdfast_image::control::Reply;
use holdfast_image::refusal::{Checked, Finding, Refusal, one_per_object};
use holdfast_process::{Awaited, CheckError, CheckOptions, Members, check, is_unregistered};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Who waits for a look.
#[derive(Debug, Default)]
pub struct Checks {
    /// Those that the look under way is for.
    now: Option<Vec<u64>>,
    /// Those that came after its beginning.
    next: Vec<u64>,
}

impl Checks {
    /// A connection asks.
    pub fn ask(&mut self, client: u64) {
        self.next.push(client);
    }
    /// Whether a connection waits for an answer.
    pub fn has(&self, client: u64) -> bool {
        self.next.contains(&client) || self.now.as_ref().is_some_and(|now| now.contains(&client))
    }
    /// Takes those that the next look is for; `None`: no request waits, or a look is under way.
    pub fn begin(&mut self) -> Option<Vec<u64>> {
        let free = self.now.is_none() && !self.next.is_empty();
        free.then(|| std::mem::take(&mut self.next))
    }
    /// A look for these has begun.
    pub fn under_way(&mut self, clients: Vec<u64>) {
        self.now = Some(clients);
    }
    /// It is done: those it was for.
    pub fn done(&mut self) -> Vec<u64> {
        self.now.take().unwrap_or_default()
    }
}

/// Starts the thread, which ends with [`Event::Checked`].
///
/// # Errors
/// EAGAIN: no thread can be made.
pub fn start(
    context: Arc<JobContext>,
    processes: Arc<Mutex<Processes>>,
    inherited_fds: Vec<InheritedFd>,
    reporter: Reporter,
) -> io::Result<()> {
    // The loop does not wait for its end: it only looks.
    thread::Builder::new().name("check".into()).spawn(move || {
        let reply = match settled_look(&context, &processes, &inherited_fds) {
            Some(Ok(checked)) => Reply::Checked(bounded(checked)),
            Some(Err(error)) => Reply::Error { message: error.to_string() },
            None => Reply::NoProgram { awaited: processes.lock().awaited },
        };
        reporter.report(Event::Checked(reply));
    })?;
    Ok(())
}

/// As a checkpoint, this waits for processes that have not registered yet. `None`: no process is left.
fn settled_look(
    context: &JobContext,
    processes: &Mutex<Processes>,
    inherited_fds: &[InheritedFd],
) -> Option<Result<Checked, CheckError>> {
    let begun = Instant::now();
    let mut awaited = Awaited::new(begun);
    loop {
        let members = processes.lock().members()?;
        let checked = match look(context, &members, inherited_fds) {
            Ok(checked) => checked,
            Err(error) => return Some(Err(error)),
        };
        let refusals = checked.findings.iter().map(|finding| &finding.refusal);
        let met: Vec<Refusal> = refusals.filter(|refusal| is_unregistered(refusal)).cloned().collect();
        if met.is_empty() || awaited.has_had(cut::PATIENCE, &met) || begun.elapsed() > cut::BUSY {
            return Some(Ok(checked));
        }
        thread::sleep(cut::FIRST_PAUSE);
    }
}

fn look(
    context: &JobContext,
    members: &Members,
    inherited_fds: &[InheritedFd],
) -> Result<Checked, CheckError> {
    let only_protected = context.settings().only_protected;
    let program = members.program();
    let others = members.targets().iter().skip(1);
    let used = Cuda::users(members);
    let obstacles = context.cuda.obstacles(members, &used);
    let mut checked = check(&CheckOptions {
        pid: program.pid,
        area: Some(program.area),
        others: others.map(|other| (other.pid, other.area)).collect(),
        socket: context.job.socket_path(),
        namespaces: Some(Arc::clone(context.namespaces())),
        mapped: context.mapped(),
        inherited: inherited_fds.iter().map(InheritedFd::identity).collect(),
        lose_connections: context.settings().outside == OutsideChoice::Close,
        in_gang: context.gang.is_some(),
        save_files: context.settings().save_files.saving(),
        only_protected,
        cuda: used.iter().map(|one| one.pid).collect(),
    })?;
    let (pid, comm) = (checked.pid, checked.comm.clone());
    checked.findings.extend(obstacles.into_iter().map(|refusal| Finding::new(pid, &comm, refusal)));
    let nothing =
        || protected::read(program.pid, program.area.shared).is_ok_and(|regions| regions.is_empty());
    if only_protected && nothing() {
        let refusal = cut::nothing_protected(program.pid);
        checked.findings.insert(0, Finding::new(checked.pid, &checked.comm, refusal));
    }
    if let Err(CheckpointError::Refused(refusals)) = Headroom::of(members) {
        let findings = refusals.into_iter().map(|refusal| Finding::new(checked.pid, &checked.comm, refusal));
        checked.findings.extend(findings.collect::<Vec<_>>());
    }
    checked.findings = one_per_object(&checked.findings);
    checked.device_memory = Cuda::device_memory(members, &used);
    let devices = checked.device_memory.map(|memory| (used.len() as u64, memory));
    checked.estimate = estimate::of(context, members, devices);
    Ok(checked)
}

/// With as many findings as fit a message.
fn bounded(mut checked: Checked) -> Checked {
    const ROOM: usize = 48 * 1024;
    let mut room = ROOM;
    let all = checked.findings.len();
    let fits = checked.findings.iter().take_while(|finding| {
        let len = serde_json::to_vec(finding).map_or(usize::MAX, |text| text.len() + 1);
        let fits = len <= room;
        room = room.saturating_sub(len);
        fits
    });
    let kept = fits.count();
    checked.findings.truncate(kept);
    checked.left_out = all - kept;
    checked
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::control::MAX_MESSAGE;
    use holdfast_image::refusal::Subject;

    #[test]
    fn no_request_gets_what_was_found_before_it() {
        let mut checks = Checks::default();
        assert_eq!(checks.begin(), None);
        checks.ask(1);
        checks.ask(2);
        assert_eq!(checks.begin(), Some(vec![1, 2]));
        checks.under_way(vec![1, 2]);
        checks.ask(3);
        assert_eq!(checks.begin(), None);
        assert_eq!(checks.done(), [1, 2]);
        assert_eq!(checks.begin(), Some(vec![3]));
    }

    #[test]
    fn findings_always_fit_a_message() {
        let refusal = |fd| Refusal {
            subject: Subject::Descriptor { fd, name: "\u{1}\"/very/long".repeat(20) },
            reason: "not supported yet".into(),
        };
        let findings: Vec<Finding> = (0..5_000).map(|fd| Finding::new(1, "sim", refusal(fd))).collect();
        let whole = Checked {
            pid: 1,
            comm: "sim".into(),
            findings,
            left_out: 0,
            device_memory: None,
            notes: Vec::new(),
            estimate: None,
        };
        let cut = bounded(whole.clone());
        assert_eq!(cut.findings.len() + cut.left_out, 5_000);
        assert!(cut.findings.len() > 50);
        assert!(serde_json::to_vec(&Reply::Checked(cut)).is_ok_and(|text| text.len() < MAX_MESSAGE));
        let few = Checked { findings: whole.findings[..3].to_vec(), ..whole };
        assert_eq!(bounded(few.clone()), few);
    }
}
