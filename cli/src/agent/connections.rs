//! The connections of the agent's socket: how many there may be, and which goes for a new one.
//!
//! Used by the loop. What must hold: whatever the job's own processes do with the socket, the commands are answered.

use std::os::fd::OwnedFd;

/// Most connections at a time.
const MOST: usize = 128;
/// Of them for others than the job's own processes: the commands.
const KEPT_FREE: usize = 16;

/// A connection.
pub struct Client {
    /// Counts up.
    pub id: u64,
    /// Our end.
    pub socket: OwnedFd,
    /// Who has connected.
    pub pid: i32,
}

/// Whether a connection of `pid` may be served. Where there are too many, the oldest that waits for no answer is closed
/// for it, one of the job's own processes first. `members`: those; `waits`: whether a connection waits.
pub fn has_free_slot(
    clients: &mut Vec<Client>,
    pid: i32,
    members: &[i32],
    waits: impl Fn(u64) -> bool,
) -> bool {
    let most = if members.contains(&pid) { MOST - KEPT_FREE } else { MOST };
    if clients.len() < most {
        return true;
    }
    let is_idle = |client: &&Client| !waits(client.id);
    let of_member = clients.iter().filter(is_idle).find(|client| members.contains(&client.pid));
    let Some(id) = of_member.or_else(|| clients.iter().find(is_idle)).map(|client| client.id) else {
        return false;
    };
    tracing::warn!("too many connections: an idle one was closed");
    clients.retain(|client| client.id != id);
    clients.len() < most
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn with(pids: impl Iterator<Item = i32>) -> Vec<Client> {
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        (0..).zip(pids).map(|(id, pid)| Client { id, socket: null(), pid }).collect()
    }

    #[test]
    fn members_leave_some_and_the_idle_go_first() {
        let (member, command) = (7, 8);
        let mut clients = with((0..112).map(|_| member));
        // All of them wait: a command gets in, a member does not.
        assert!(!has_free_slot(&mut clients, member, &[member], |_| true));
        assert!(has_free_slot(&mut clients, command, &[member], |_| true) && clients.len() == 112);
        assert!(has_free_slot(&mut clients, member, &[member], |id| id != 5));
        assert!(clients.len() == 111 && clients.iter().all(|client| client.id != 5));
        // The oldest is a command's; a member's goes before it.
        let mut clients = with((0..128).map(|n| if n == 0 { command } else { member }));
        assert!(has_free_slot(&mut clients, command, &[member], |_| false));
        assert!(clients[0].pid == command && clients[1].id == 2);
        let mut clients = with((0..128).map(|_| command));
        assert!(!has_free_slot(&mut clients, command, &[member], |_| true) && clients.len() == 128);
        assert!(has_free_slot(&mut clients, command, &[member], |_| false) && clients[0].id == 1);
    }
}
