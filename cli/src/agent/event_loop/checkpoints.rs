//! Checkpoints as the loop sees them: who waits for one, when it starts, what comes of it.
//!
//! Part of the loop. Invariants: one checkpoint at a time; who wants the same is served by the same.

use super::super::checkpoint;
use super::super::error::CheckpointError;
use super::super::events::{Event, NewImage, Progress};
use super::super::hook::Committed;
use super::super::request::{CheckpointOptions, CheckpointRequest};
use super::{EventLoop, Running, Waiter};
use crate::front_link::Tell;
use crate::gang::round::Round;
use crate::last_run::LastRun;
use crate::report;
use holdfast_abi::environment::ON_STOP_FAILED;
use holdfast_image::control::Reply;
use holdfast_sys::{procfs, ptrace, signals};
use holdfast_tiers::ImageInfo;
use holdfast_tiers::stack::Cascade;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// When a checkpoint of the interval that has failed is tried again with `--strict`.
const SOON: Duration = Duration::from_secs(10);

impl EventLoop {
    pub(super) fn request_checkpoint(&mut self, waiter: Waiter) {
        let Some(waiter) = self.ask_leader(waiter) else { return };
        match &mut self.running {
            // The cut is still to come and does what is asked for: one checkpoint serves both.
            Some(running) if running.cut.is_none() && running.options.serves(&waiter.options) => {
                running.waiters.push(waiter)
            }
            Some(_) => self.queued.push(waiter),
            None if self.rollbacks.is_under_way() || self.starts.is_under_way() => self.queued.push(waiter),
            None => self.start_checkpoint(vec![waiter]),
        }
    }

    /// Starts a checkpoint that serves the first of `waiters` and all others that want the same; the rest goes on
    /// waiting.
    fn start_checkpoint(&mut self, waiters: Vec<Waiter>) {
        let Some(options) = waiters.first().map(|waiter| waiter.options) else { return };
        let (waiters, rest): (Vec<_>, Vec<_>) =
            waiters.into_iter().partition(|waiter| options.serves(&waiter.options));
        self.queued = rest;
        self.begin_checkpoint(options, waiters, None);
    }

    /// Starts one; `entered`: the round of the gang that it is a part of, if another member leads it.
    pub(super) fn begin_checkpoint(
        &mut self,
        options: CheckpointOptions,
        waiters: Vec<Waiter>,
        entered: Option<Arc<Round>>,
    ) {
        self.notice_ends();
        if self.program_pid().is_none() && !self.processes().awaited {
            // The launcher may have ended before it was heard.
            self.follow_kin();
        }
        if let Some(seconds) = self.context.every_s() {
            self.due = Some(Instant::now() + Duration::from_secs(seconds));
        }
        let started = match self.program_pid() {
            _ if self.ending => Err(CheckpointError::Failed("the agent is ending".to_owned())),
            None => Err(CheckpointError::NoProgram { awaited: self.processes().awaited }),
            Some(_) => self.round(&options, entered.clone()).and_then(|round| self.spawn(options, round)),
        };
        match started {
            Ok((thread, progress)) => {
                self.running = Some(Running { thread, progress, options, cut: None, waiters });
            }
            Err(failed) => {
                self.no_round(&failed, entered.as_deref());
                self.note_stop(options.stop, true);
                self.fail(waiters, &failed);
                self.start_queued();
            }
        }
    }

    fn spawn(
        &self,
        options: CheckpointOptions,
        round: Option<Arc<Round>>,
    ) -> Result<(JoinHandle<()>, Arc<Progress>), CheckpointError> {
        let progress = Arc::new(Progress::default());
        let request = CheckpointRequest {
            processes: Arc::clone(&self.processes),
            options,
            inherited_fds: self.inherited_fds.clone().unwrap_or_default(),
            round,
        };
        let (context, tracer) = (Arc::clone(&self.context), Arc::clone(&self.tracer));
        checkpoint::start(context, tracer, request, Arc::clone(&progress), self.reporter.clone())
            .map(|thread| (thread, progress))
            .map_err(|error| CheckpointError::Failed(format!("starting the checkpoint thread: {error}")))
    }

    /// What tells later how the program has ended tells that it was to be ended by an image.
    fn note_stop(&self, is_stop: bool, failed: bool) {
        if is_stop {
            LastRun::note_stop(&self.context.job, failed);
        }
    }

    /// What waits for the end of a checkpoint or a rollback: rollbacks first, whose images are there.
    pub(super) fn start_queued(&mut self) {
        self.start_rollback();
        if self.is_busy() || self.start_prepared() {
            return;
        }
        let queued = std::mem::take(&mut self.queued);
        self.start_checkpoint(queued);
        self.start_member();
    }

    pub(super) fn fail(&mut self, waiters: Vec<Waiter>, failed: &CheckpointError) {
        tracing::warn!("checkpoint failed: {}", failed.line());
        self.last_error = Some(failed.line());
        if waiters.iter().any(|waiter| !waiter.wait || waiter.client.is_none())
            && self.program_pid().is_some()
        {
            self.failed_unheard(failed);
        }
        for (pid, signal) in waiters.iter().filter_map(|waiter| waiter.handler) {
            // It may have ended, or execute something else by now, which knows nothing of it.
            let catches = procfs::Status::read(pid, pid)
                .is_ok_and(|status| status.mask("SigCgt") & signals::bit(signal) != 0);
            if catches && self.processes().has(pid) {
                let _ = ptrace::queue(pid, signal, ON_STOP_FAILED);
            }
        }
        let reply = failed.reply();
        for id in waiters.into_iter().filter_map(|waiter| waiter.client) {
            self.answer(id, &reply);
        }
    }

    /// Who waits is answered. Of the interval, and of the program's own request, the front tells: each reason once.
    fn failed_unheard(&mut self, failed: &CheckpointError) {
        let Some(link) = &self.context.link else { return };
        if self.told_error != self.last_error {
            self.told_error.clone_from(&self.last_error);
            let text = format!("checkpoint failed: {}; the program runs on", failed.line());
            link.tell(&Tell::Warning { text });
        }
        if !self.context.settings().strict {
            return;
        }
        // What is only so for a moment ends no program: it is tried once more, soon.
        if std::mem::replace(&mut self.has_failed, true) {
            link.tell(&Tell::Unprotected);
        } else if let Some(due) = &mut self.due {
            *due = (*due).min(Instant::now() + SOON);
        }
    }

    pub(super) fn checkpoint_event(&mut self, event: Event) {
        match event {
            Event::Cut { epoch, stop_ns } => {
                let Some(running) = &mut self.running else { return };
                running.cut = Some((epoch, stop_ns));
                let (now, later) = std::mem::take(&mut running.waiters)
                    .into_iter()
                    .partition(|waiter| !waiter.wait && waiter.handler.is_none());
                running.waiters = later;
                let now: Vec<Waiter> = now;
                for id in now.into_iter().filter_map(|waiter| waiter.client) {
                    self.answer(
                        id,
                        &Reply::Checkpointed { epoch, stop_ns, committed: false, gang_image: None },
                    );
                }
            }
            Event::Done(result) => self.checkpoint_done(result),
            Event::Gang(heard) => self.heard(heard),
            Event::SshEnded { member, why } => self.ssh_ended(member, &why),
            Event::Checked(reply) => self.checked(&reply),
            Event::Planned(found) => self.planned(found),
            Event::RolledBack(reply) => self.rolled_back(&reply),
            Event::Removed { client, reply } => {
                self.removing.retain(|id| *id != client);
                self.answer(client, &reply);
            }
        }
    }

    /// The front says it, if it is to say much; the command of `--exec-after` is started.
    fn tell_of_image(&mut self, info: &ImageInfo, stopped: bool) {
        let epoch = info.epoch;
        if let Some(link) = &self.context.link {
            let (stop, memory) = (report::short_time(info.stop_ns), report::size(info.program_bytes));
            let added = report::size(info.bytes);
            let figures = format!("image {epoch}: stop time {stop}, {memory} of memory in {added} on disk");
            link.tell(&Tell::Committed { figures });
        }
        self.hook.committed(&self.context, Committed { epoch, stopped });
    }

    fn checkpoint_done(&mut self, result: Result<NewImage, CheckpointError>) {
        let Some(running) = self.running.take() else { return };
        // It has sent its last event, so this does not wait.
        let _ = running.thread.join();
        match result {
            Ok(NewImage { info, gang_image, failed }) => {
                let (epoch, stop_ns) = (info.epoch, info.stop_ns);
                tracing::info!("image {epoch} committed: {} bytes, stop {stop_ns} ns", info.bytes);
                self.newest = Some(epoch);
                self.note_stop(true, false);
                self.tell_of_image(&info, running.options.stop && failed.is_none());
                self.plan();
                self.context.cascade.iter().for_each(Cascade::wake);
                (self.last_error, self.told_error, self.has_failed) = (None, None, false);
                if let Some(failed) = failed {
                    // Of what follows the commit: the image is handed on all the same.
                    self.fail(running.waiters, &failed);
                    return self.start_queued();
                }
                for id in running.waiters.into_iter().filter_map(|waiter| waiter.client) {
                    self.answer(id, &Reply::Checkpointed { epoch, stop_ns, committed: true, gang_image });
                }
            }
            Err(CheckpointError::Again(_)) if self.is_led() => self.asked.extend(running.waiters),
            Err(failed) => {
                if matches!(failed, CheckpointError::Again(_)) {
                    self.no_round(&failed, None);
                }
                self.note_stop(running.options.stop, true);
                self.fail(running.waiters, &failed);
            }
        }
        self.start_queued();
    }
}
