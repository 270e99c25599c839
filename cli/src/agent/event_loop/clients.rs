//! What clients of the socket ask for, and their answers.
//!
//! Part of the loop. Invariants: a client of another user is rejected; every waiter gets exactly one reply or a closed
//! connection; one that does not read loses its connection.

use super::super::connections::{Client, has_free_slot};
use super::super::request::CheckpointOptions;
use super::super::{checks, remove};
use super::{EventLoop, Waiter};
use crate::cascade;
use crate::new_settings::{NewSettings, told};
use crate::settings::Changes;
use holdfast_image::control::{JobStatus, MAX_MESSAGE, Reply, Request, Step, Wanted};
use holdfast_sys::{fd, scm, unix_socket};
use holdfast_tiers::stack::Cascade;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl EventLoop {
    pub(super) fn accept(&mut self) {
        while let Ok(socket) = unix_socket::accept(self.listener.as_fd()) {
            let Ok(who) = unix_socket::peer(socket.as_fd()) else { continue };
            if who.uid != unix_socket::effective_user() && who.uid != 0 {
                tracing::warn!("process {} of user {} was rejected", who.pid, who.uid);
                continue;
            }
            if !self.has_free_slot(who.pid) {
                tracing::warn!("too many connections: process {} was rejected", who.pid);
                continue;
            }
            self.next_client += 1;
            self.clients.push(Client { id: self.next_client, socket, pid: who.pid });
            // What it has sent already is read at once: its registration may be its last sign of life. What came
            // before on other connections is read first: a program may ask for a checkpoint right after its
            // registration.
            let ids: Vec<u64> = self.clients.iter().map(|client| client.id).collect();
            for id in ids {
                self.client_event(id);
            }
        }
    }

    /// As [`has_free_slot`].
    fn has_free_slot(&mut self, pid: i32) -> bool {
        let waiting: BTreeSet<u64> =
            self.clients.iter().map(|client| client.id).filter(|id| self.awaits_answer(*id)).collect();
        let members = self.processes().pids();
        has_free_slot(&mut self.clients, pid, &members, |id| waiting.contains(&id))
    }

    fn awaits_answer(&self, id: u64) -> bool {
        let running = self.running.iter().flat_map(|running| &running.waiters);
        running.chain(&self.queued).chain(&self.asked).any(|waiter| waiter.client == Some(id))
            || self.rollbacks.has(id)
            || self.starts.has(id)
            || self.checks.has(id)
            || self.removing.contains(&id)
    }

    pub(super) fn client_event(&mut self, id: u64) {
        // Kept, as it is large and a job may make a thousand processes in a second.
        let mut buffer = std::mem::take(&mut self.buffer);
        // One byte more than allowed: a longer message is noticed instead of being cut.
        buffer.resize(MAX_MESSAGE + 1, 0);
        self.receive_all(id, &mut buffer);
        self.buffer = buffer;
    }

    /// Everything that a client has sent.
    fn receive_all(&mut self, id: u64, buffer: &mut [u8]) {
        loop {
            let Some(client) = self.clients.iter().find(|client| client.id == id) else { return };
            let pid = client.pid;
            match scm::receive_with(client.socket.as_fd(), buffer, libc::MSG_DONTWAIT) {
                Ok((0, _)) => return self.clients.retain(|client| client.id != id),
                Ok((len, _)) if len > MAX_MESSAGE => {
                    self.answer(
                        id,
                        &Reply::Error { message: format!("message longer than {MAX_MESSAGE} bytes") },
                    );
                }
                Ok((len, passed)) => match serde_json::from_slice::<Request>(&buffer[..len]) {
                    Ok(request) => self.request(id, pid, request, passed),
                    Err(error) => {
                        tracing::warn!("process {pid} sent something that is not a request: {error}");
                        self.answer(id, &Reply::Error { message: format!("not a request: {error}") });
                    }
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.clients.retain(|client| client.id != id),
            }
        }
    }

    pub(super) fn answer(&mut self, id: u64, reply: &Reply) {
        let Some(client) = self.clients.iter().find(|client| client.id == id) else { return };
        let Ok(text) = serde_json::to_vec(reply) else { return };
        if fd::send(client.socket.as_fd(), &text, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT).is_err() {
            self.clients.retain(|client| client.id != id);
        }
    }

    fn request(&mut self, id: u64, pid: i32, request: Request, passed: Option<OwnedFd>) {
        match request {
            Request::Register { event, version, area } => self.register(pid, &event, &version, area, passed),
            Request::Status => {
                let status = self.status();
                self.answer(id, &Reply::Status(status));
            }
            Request::Checkpoint { stop, wait, wishes } => match Changes::of_wishes(&wishes) {
                Ok(changes) => {
                    let until_cut = !wait && self.processes().has(pid);
                    let options = CheckpointOptions { stop, changes, until_cut, back: false };
                    let handler =
                        wishes.signal.filter(|_| self.processes().has(pid)).map(|signal| (pid, signal));
                    self.request_checkpoint(Waiter { client: Some(id), wait, options, handler });
                }
                Err(message) => self.answer(id, &Reply::Error { message }),
            },
            Request::Rollback { image } => self.request_rollback(id, image),
            Request::Set { wanted } => {
                let reply = self.set(&wanted);
                self.answer(id, &reply);
            }
            Request::Remove { images } => {
                match remove::start(Arc::clone(&self.context), id, images, self.reporter.clone()) {
                    Ok(()) => self.removing.push(id),
                    Err(error) => {
                        self.answer(id, &Reply::Error { message: format!("starting a thread: {error}") })
                    }
                }
            }
            Request::Check => {
                self.checks.ask(id);
                self.start_checks();
            }
            Request::Sync => {
                self.context.cascade.iter().for_each(Cascade::hurry);
                self.answer(id, &Reply::Ok);
            }
            Request::Quit => {
                self.ending = true;
                self.answer(id, &Reply::Ok);
            }
            Request::Remote { host, options } => self.ask_remote(id, host, options),
            Request::Serves { port } => {
                let reply = self.own_server(port);
                self.answer(id, &reply);
            }
            // The regions are read from the program's own table at every checkpoint; this is only a notice.
            Request::Protect { .. } => self.answer(id, &Reply::Ok),
        }
    }

    fn set(&mut self, wanted: &Wanted) -> Reply {
        let done = NewSettings::of_wanted(wanted).and_then(|new| {
            self.context.set(&new).map_err(|failure| failure.message)?;
            Ok(new)
        });
        match done {
            Ok(new) => {
                tracing::info!("from now on: {}", told(&self.context.settings()));
                if new.every.is_some() {
                    let every = self.context.every_s();
                    self.due = every.map(|seconds| Instant::now() + Duration::from_secs(seconds));
                }
                Reply::Ok
            }
            Err(message) => Reply::Error { message },
        }
    }

    /// Looks at the program for all who wait for that, unless a look is under way: what it finds may be older than
    /// their requests.
    fn start_checks(&mut self) {
        let Some(clients) = self.checks.begin() else { return };
        let inherited_fds = self.inherited_fds.clone().unwrap_or_default();
        let processes = Arc::clone(&self.processes);
        let started =
            checks::start(Arc::clone(&self.context), processes, inherited_fds, self.reporter.clone())
                .map_err(|error| Reply::Error {
                    message: format!("starting the thread that looks at the program: {error}"),
                });
        match started {
            Ok(()) => self.checks.under_way(clients),
            Err(reply) => clients.into_iter().for_each(|id| self.answer(id, &reply)),
        }
    }

    pub(super) fn checked(&mut self, reply: &Reply) {
        for id in self.checks.done() {
            self.answer(id, reply);
        }
        self.start_checks();
    }

    fn status(&self) -> JobStatus {
        let under_way = self.running.as_ref().and_then(|running| running.progress.now());
        // Before the states: who is told that nothing moves is told how it ended.
        let tiers_busy = self.context.cascade.as_ref().is_some_and(Cascade::is_busy);
        let flush = under_way.filter(|now| matches!(now.step, Step::Flush | Step::Commit));
        JobStatus {
            job: self.context.job.name().to_owned(),
            pid: self.program_pid(),
            agent_pid: std::process::id().cast_signed(),
            newest: self.newest,
            flushing: flush.map(|now| now.image),
            flushed_bytes: flush.map_or(0, |now| now.done_bytes),
            flush_total_bytes: flush.map_or(0, |now| now.total_bytes),
            under_way,
            last_error: self.last_error.clone(),
            tiers: cascade::status(self.context.cascade.as_ref()),
            tiers_busy,
            lingering: self.running.is_none() && self.is_alone(),
        }
    }
}
