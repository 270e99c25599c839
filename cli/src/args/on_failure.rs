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
    supervised_by().is_some_and(|(pid, _)| pid == std::os::unix::process::parent_id())
}

/// Whether it would do so once more.
pub fn is_restarted() -> bool {
    is_supervised() && supervised_by().is_some_and(|(_, again)| again)
}

/// What the parent says of itself, for `again`: whether it restarts this process, too, if that fails.
pub fn supervision(again: bool) -> String {
    format!("{}{}", std::process::id(), if again { "" } else { " last" })
}

fn supervised_by() -> Option<(u32, bool)> {
    let text = std::env::var(ENV_SUPERVISED).ok()?;
    let pid = text.strip_suffix(" last");
    Some((pid.unwrap_or(&text).parse().ok()?, pid.is_none()))
}
