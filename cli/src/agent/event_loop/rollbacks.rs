//! Rollbacks as the loop sees them: who has asked for one, when it starts, what comes of it.
//!
//! Part of the loop. Invariants: one at a time, in the order in which they were asked for, and none beside a
//! checkpoint: a flush under way is waited for, for its image is the one that is wanted; every client gets one answer.

use super::super::error::CheckpointError;
use super::super::rollback::{self, RollbackRequest};
use super::EventLoop;
use holdfast_image::Epoch;
use holdfast_image::control::Reply;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl EventLoop {
    pub(super) fn request_rollback(&mut self, client: u64, image: Option<Epoch>) {
        self.rollbacks.queued.push_back((client, image));
        self.start_rollback();
    }

    /// Starts the next one, unless something is under way.
    pub(super) fn start_rollback(&mut self) {
        while !self.is_at_work()
            && let Some((client, image)) = self.rollbacks.queued.pop_front()
        {
            self.notice_ends();
            if self.program_pid().is_none() {
                let awaited = self.processes().awaited;
                self.answer(client, &CheckpointError::NoProgram { awaited }.reply());
                continue;
            }
            let request = RollbackRequest {
                processes: Arc::clone(&self.processes),
                inherited_fds: self.inherited_fds.clone().unwrap_or_default(),
                image,
            };
            let (context, tracer) = (Arc::clone(&self.context), Arc::clone(&self.tracer));
            match rollback::start(context, tracer, request, self.reporter.clone()) {
                Ok(thread) => self.rollbacks.running = Some((thread, client)),
                Err(error) => {
                    let message = format!("starting the thread of a rollback: {error}");
                    self.answer(client, &Reply::Error { message });
                }
            }
        }
    }

    pub(super) fn rolled_back(&mut self, reply: &Reply) {
        let Some((thread, client)) = self.rollbacks.running.take() else { return };
        // It has sent its last event, so this does not wait.
        let _ = thread.join();
        self.answer(client, reply);
        if let Some(seconds) = self.context.every_s() {
            self.due = Some(Instant::now() + Duration::from_secs(seconds));
        }
        self.start_queued();
    }
}
