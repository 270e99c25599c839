//! Commands that ask the leader of a gang, from any host that reaches the store.

use super::folder::GangFolder;
use super::join::{NotMet, find};
use super::message::Message;
use crate::exit::{Exit, Failure};
use holdfast_image::control::{Reply, Wishes};

/// Whether its leader is there.
pub fn runs(folder: &GangFolder) -> bool {
    find(folder, None).is_ok()
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
