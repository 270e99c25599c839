//! What launchers are told, so that they call `holdfast rsh` where they would call ssh.
//!
//! Used where the program of an open gang is started, and by the agent of its leader. Invariant: what the user has set
//! stays. Fails by: a link that cannot be made.

use crate::entries::{RSH, own_environment, variable};
use crate::exit::Failure;
use crate::helper::named_binary;
use crate::settings::GangPlace;
use holdfast_abi::environment::{ENV_KEY, ENV_MEMBER_KEY, ENV_MEMBER_SOCKET, ENV_SOCKET};
use holdfast_tiers::Job;
use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::fs::symlink;

/// What the launcher of an open gang finds in its environment.
///
/// # Errors
/// /proc has not our executable.
pub fn variables(job: &Job, place: &GangPlace) -> Result<Vec<(&'static str, OsString)>, Failure> {
    if !place.open || !place.is_leader() {
        return Ok(Vec::new());
    }
    let mut agent = named_binary()?.into_os_string();
    agent.push(" rsh");
    let link: OsString = job.dir().join(RSH).into();
    // Open MPI splits at blanks, and has daemons start others where it may (`plm_rsh_module.c`,
    // `plm_ssh_module.c`); Hydra takes a path (`external_common_launch.c`).
    let all = [
        ("OMPI_MCA_plm_rsh_agent", agent.clone()),
        ("OMPI_MCA_plm_rsh_no_tree_spawn", "1".into()),
        ("PRTE_MCA_plm_ssh_agent", agent),
        ("PRTE_MCA_plm_ssh_no_tree_spawn", "1".into()),
        ("HYDRA_LAUNCHER", "ssh".into()),
        ("HYDRA_LAUNCHER_EXEC", link),
    ];
    Ok(all.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()).collect())
}

/// The environment of a command that is started on this host for a launcher on another one.
///
/// # Errors
/// As [`own_environment`].
pub fn of_command() -> Result<Vec<CString>, Failure> {
    let mut entries = own_environment()?;
    for (of_job, of_member) in [(ENV_SOCKET, ENV_MEMBER_SOCKET), (ENV_KEY, ENV_MEMBER_KEY)] {
        if let Some(value) = std::env::var_os(of_job) {
            entries.push(variable(of_member, &value)?);
        }
    }
    Ok(entries)
}

/// Makes the link that Hydra calls. After a restart the binary may be another one.
///
/// # Errors
/// It cannot be made.
pub fn link(job: &Job) -> Result<(), Failure> {
    let (path, binary) = (job.dir().join(RSH), named_binary()?);
    let made = match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => symlink(binary, &path),
    };
    made.map_err(|error| Failure::system(format_args!("making {}", path.display()), &error))
}
