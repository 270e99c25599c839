//! Who a process is, if that is not who the agent is: from the status files of both.
//!
//! Called inside the stop with what is read already. Only root's agent can find such processes: one of an ordinary user
//! may not trace them, but in a user namespace that they have made. Fails by: a line that is not understood counts as
//! no difference.

use holdfast_image::credentials::Credentials;
use holdfast_sys::procfs::Status;
use holdfast_sys::unix_socket;

const IDS: [&str; 3] = ["Uid", "Gid", "Groups"];
/// In the order of [`Credentials::capabilities`].
const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];

/// `None`: the process is who the agent is, and so is a new one at a restart. In a user namespace of its own
/// (`is_apart`) it has rights of its own.
pub fn of(status: &Status, is_apart: bool) -> Option<Credentials> {
    if is_apart {
        return parse(status);
    }
    if unix_socket::effective_user() != 0 {
        return None;
    }
    let own = std::process::id().cast_signed();
    let agent = Status::read(own, own).ok()?;
    let differs = |key: &&str| status.get(key) != agent.get(key);
    IDS.iter().chain(&SETS).any(differs).then(|| parse(status))?
}

fn parse(status: &Status) -> Option<Credentials> {
    let numbers = |key: &str| -> Option<Vec<u32>> {
        status.get(key)?.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    let first_three = |key: &str| numbers(key)?.get(..3)?.try_into().ok();
    Some(Credentials {
        users: first_three("Uid")?,
        groups: first_three("Gid")?,
        // The fourth of each line (fs/proc/array.c, task_state).
        files: Some([*numbers("Uid")?.get(3)?, *numbers("Gid")?.get(3)?]),
        more_groups: numbers("Groups").unwrap_or_default(),
        capabilities: SETS.map(|key| status.mask(key)),
    })
}
