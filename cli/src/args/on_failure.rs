//! `--restart-on-failure` and `--spare`, for `run`.

use crate::entries::ENV_SUPERVISED;
use clap::Args;

/// See the head of the file.
#[derive(Clone, Debug, Default, Args)]
pub struct OnFailure {
    /// When the program ends by a signal or with a status that is not 0, or its agent, or a host or agent of its gang
    /// is lost: end what is left, and restart it from its newest image, N times at most. Not when SIGINT, SIGTERM or
    /// SIGHUP has ended it
    #[arg(long, value_name = "N")]
    pub restart_on_failure: Option<u32>,
    /// With --gang ssh: hosts that take the places of those that ssh does not reach any more at such a restart
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', requires = "restart_on_failure")]
    pub spare: Vec<String>,
}

impl OnFailure {
    /// How often at most; `None`: it was not asked for, or another process of ours does that.
    pub fn most(&self) -> Option<u32> {
        self.restart_on_failure.filter(|_| !is_supervised())
    }
}

/// Whether the parent of this process restarts what fails.
pub fn is_supervised() -> bool {
    let parent = std::os::unix::process::parent_id().to_string();
    std::env::var(ENV_SUPERVISED).is_ok_and(|pid| pid == parent)
}
