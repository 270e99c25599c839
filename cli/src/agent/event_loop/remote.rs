//! Members that are added to an open gang, as the loop sees them: `holdfast rsh` asks for a host, whose member is
//! started if there is none.
//!
//! Part of the loop; of the leader, but for what the server of a member says to its own agent. Invariants: one member
//! is started at a time, and no checkpoint begins meanwhile: all members know how many they are in a round. Who asks
//! gets one answer. How it fails: who has asked is told why; the gang is as before.

use super::super::events::Event;
use super::super::starts::Wanted;
use super::EventLoop;
use crate::gang::added::Added;
use crate::gang::image::Remote;
use crate::gang::seat::Seat;
use crate::gang::ssh::{self, Task};
use crate::rsh::line::check_host;
use holdfast_image::control::Reply;
use holdfast_sys::ptrace;
use std::net::SocketAddr;
use std::sync::Arc;

impl EventLoop {
    /// Where is the server of a host?
    pub(super) fn ask_remote(&mut self, client: u64, host: String, options: Vec<String>) {
        let Some((_, added)) = self.open_gang() else {
            return self.answer(client, &Reply::Error { message: self.no_open_gang() });
        };
        // Any process of the user may connect to the socket.
        if let Err(message) = check_host(&host) {
            return self.answer(client, &Reply::Error { message });
        }
        if let Some((member, port)) = added.on(&host) {
            return self.answer_remote(client, member, port);
        }
        match self.starts.wanted.iter_mut().find(|wanted| wanted.host == host) {
            Some(wanted) => wanted.clients.push(client),
            None => self.starts.wanted.push_back(Wanted { host, options, clients: vec![client] }),
        }
        self.start_member();
    }

    /// Why no host can be added here.
    fn no_open_gang(&self) -> String {
        let job = self.context.job.name();
        match self.context.gang.as_ref().map(|gang| gang.seat.place()) {
            Some(place) if place.open => format!(
                "job {job} was added to its gang; only programs on the host of the leader, {}, can start others",
                place.job_of(0)
            ),
            _ => format!(
                "job {job} knows no other hosts: run it with --gang ssh, in a store that they reach, too"
            ),
        }
    }

    /// The others, and those that were added, if this is the leader of an open gang.
    fn open_gang(&self) -> Option<(Arc<Seat>, Arc<Added>)> {
        let gang = self.context.gang.as_ref()?;
        Some((Arc::clone(&gang.seat), Arc::clone(gang.added.as_ref()?)))
    }

    fn answer_remote(&mut self, client: u64, member: u32, port: u16) {
        let Some((seat, added)) = self.open_gang() else { return };
        let reply = match seat.address_of(member) {
            Some(address) => {
                let at = SocketAddr::new(address, port).to_string();
                Reply::Remote { at, key: added.key().clone() }
            }
            None => Reply::Error { message: format!("member {member} of the gang is lost") },
        };
        self.answer(client, &reply);
    }

    /// Starts the member of the first host that is asked for, unless something else is under way.
    pub(super) fn start_member(&mut self) {
        while !self.is_at_work() && !self.starts.is_under_way() {
            let Some((seat, _)) = self.open_gang() else { return };
            let start = self.starts.next();
            let Some(Wanted { host, options, .. }) = self.starts.wanted.front() else { return };
            let member = seat.expect(start);
            let reporter = self.reporter.clone();
            let ended = move |why| reporter.report(Event::SshEnded { member, why });
            let store = &self.context.store;
            match ssh::start((store, seat.place()), (member, host, options), Task::Add(start), ended) {
                Ok(ssh) => self.starts.under_way = Some((member, ssh)),
                Err(failure) => self.not_added(&failure.message),
            }
        }
    }

    /// The first host that was asked for has no member.
    fn not_added(&mut self, why: &str) {
        if let Some((seat, _)) = self.open_gang() {
            seat.give_up();
        }
        self.starts.under_way = None;
        tracing::warn!("no member was added: {why}");
        let clients = self.starts.wanted.pop_front().map(|wanted| wanted.clients);
        for client in clients.into_iter().flatten() {
            self.answer(client, &Reply::Error { message: why.to_owned() });
        }
    }

    /// The ssh of a member has ended.
    pub(super) fn ssh_ended(&mut self, member: u32, why: &str) {
        if self.starts.under_way.as_ref().is_none_or(|(awaited, _)| *awaited != member) {
            return tracing::info!("{why}");
        }
        self.not_added(why);
        self.start_queued();
    }

    /// The server of a member listens: it is there.
    pub(super) fn member_serves(&mut self, member: u32, port: u16) {
        let Some((seat, added)) = self.open_gang() else { return };
        let Some((_, ssh)) = self.starts.under_way.take_if(|(awaited, _)| *awaited == member) else { return };
        let Some(Wanted { host, options, clients }) = self.starts.wanted.pop_front() else { return };
        ssh.is_there();
        seat.has_grown();
        tracing::info!("member {member} of gang {} is on {host}", seat.place().name);
        added.add(member, Remote { host, port, options });
        for client in clients {
            self.answer_remote(client, member, port);
        }
        self.start_queued();
    }

    /// From the server of this member.
    pub(super) fn own_server(&self, port: u16) -> Reply {
        let gang = self.context.gang.as_ref().filter(|gang| gang.seat.place().open && !gang.is_leader());
        let (Some(gang), Some(key)) = (gang, gang.and_then(|gang| gang.seat.key())) else {
            return Reply::Error { message: "its job was not added to a gang".into() };
        };
        match gang.seat.serves(port) {
            Ok(()) => Reply::Key { key },
            Err(why) => Reply::Error { message: why.to_string() },
        }
    }

    /// The leader is not there any more: the server ends when its commands have.
    pub(super) fn end_own_server(&self) {
        let is_added =
            self.context.gang.as_ref().is_some_and(|gang| gang.seat.place().open && !gang.is_leader());
        let Some(pid) = self.program_pid().filter(|_| is_added) else { return };
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.split(|&c| c == 0).any(|word| word == b"__rsh-server") {
            let _ = ptrace::kill(pid, libc::SIGTERM);
        }
    }
}
