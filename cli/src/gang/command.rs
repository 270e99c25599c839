//! Commands that ask the leader of a gang, from any host that reaches the store.

use super::folder::GangFolder;
use super::join::{NotMet, find};
use super::message::Message;
use crate::exit::{Exit, Failure};
use holdfast_image::control::{Reply, Wishes};

/// Whether its leader is there: one that refuses this command is.
///
/// # Errors
/// What the folder says of it cannot be read.
pub fn runs(folder: &GangFolder) -> Result<bool, Failure> {
    if folder.leader()?.is_none() {
        return Ok(false);
    }
    Ok(matches!(find(folder, None), Ok(_) | Err(NotMet::Refused(_))))
}

/// Asks for a checkpoint of all members.
///
/// # Errors
/// The gang does not run, or its leader cannot be reached.
pub fn checkpoint(folder: &GangFolder, stop: bool, wait: bool, wishes: Wishes) -> Result<Reply, Failure> {
    let name = folder.name();
    let (wire, leader) = find(folder, None).map_err(|not_met| match not_met {
        NotMet::Yet(why) => Failure::new(
            Exit::NotFound,
            format!("gang {name} is not running, or its leader cannot be reached: {why}"),
        ),
        NotMet::Refused(reason) => Failure::new(
            Exit::Refused,
            format!("the leader of gang {name} has refused this command: {reason}"),
        ),
    })?;
    let answer =
        wire.send(&Message::Checkpoint { stop, wait, wishes }, &[]).and_then(|()| wire.receive(None));
    match answer {
        Ok((Message::Reply(reply), _)) => Ok(*reply),
        Ok((other, _)) => {
            Err(Failure::new(Exit::Internal, format!("unexpected answer of the leader: {other:?}")))
        }
        Err(error) => Err(Failure::new(
            Exit::Internal,
            format!("the leader of gang {name} on {} was lost ({error}); see its agent.log", leader.host),
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::folder::Leader;
    use super::super::key::Key;
    use super::super::wire::Wire;
    use super::*;
    use crate::settings::GangPlace;
    use holdfast_tiers::Store;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn a_leader_that_refuses_runs_and_one_that_cannot_be_read_is_an_error() {
        let home = std::env::temp_dir().join(format!("holdfast-gang-runs-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&home);
        let store = Store::open(&home).unwrap();
        let place = serde_json::json!({ "name": "sim", "member": 0, "members": 2, "wait_s": 1 });
        let place: GangPlace = serde_json::from_value(place).unwrap();
        let folder = GangFolder::make(&store, &place).unwrap();
        assert!(!runs(&folder).unwrap(), "there is none");
        let (key, listener) = (Key::new().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = vec![listener.local_addr().unwrap().to_string()];
        let leader =
            Leader { version: "0".into(), run: "x".into(), host: "a".into(), addresses, key: key.text() };
        folder.announce(&leader).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let config = Arc::new(key.server().unwrap());
                let wire: Wire = Wire::accept(listener.accept().unwrap().0, &config).unwrap();
                wire.receive(None).unwrap();
                wire.send(&Message::Refused { reason: "no".into() }, &[]).unwrap();
            });
            assert!(runs(&folder).unwrap());
        });
        drop(listener);
        assert!(!runs(&folder).unwrap(), "it does not answer any more");
        let path = folder.path().join("leader.json");
        std::fs::write(&path, "{").unwrap();
        assert!(runs(&folder).unwrap_err().message.contains("leader.json"));
        let _ = std::fs::remove_dir_all(&home);
    }
}
