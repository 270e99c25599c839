//! The options of a gang, for `run` and `restart`.

use crate::settings::{GangChoice, parse_duration, parse_gang};
use clap::Args;
use holdfast_tiers::redundancy::Protection;
use std::path::PathBuf;
use std::time::Duration;

/// How long the other members are waited for, where nothing else is said.
const WAIT: Duration = Duration::from_secs(300);

/// See the head of the file.
#[derive(Clone, Debug, Default, Args)]
pub struct GangArgs {
    /// Be member MEMBER of the gang JOB, which has so many members (0 is its leader), for example 0/2 and 1/2: all are
    /// checkpointed and restarted together. auto: as Slurm, Open MPI or MPICH say. ssh: the program is mpirun, or
    /// another one that starts others by ssh, and each host that it goes to is a member. Needs a store that all hosts
    /// reach, or --gang-folder
    #[arg(long, value_name = "MEMBER/MEMBERS|auto|ssh", value_parser = parse_gang)]
    pub gang: Option<GangChoice>,
    /// Where the leader of a gang listens for the other members [default: all addresses, a free port]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "gang")]
    pub gang_listen: Option<String>,
    /// How long to wait for the other members of a gang before anything is started [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "gang")]
    pub gang_wait: Option<Duration>,
    /// Which start of a member that is added it is
    #[arg(long, value_name = "NUMBER", requires = "gang", hide = true)]
    pub gang_start: Option<u64>,
    /// Each host has a store of its own; in DIR, a small folder that all of them reach, is what they have in common:
    /// where the leader is, and what makes images of members one of the gang. Is kept
    #[arg(long, value_name = "DIR", requires = "gang")]
    pub gang_folder: Option<PathBuf>,
    /// With stores of their own, hosts keep of each other's images what is needed to rebuild those of a host that was
    /// lost. partner: two members each have what the other one has. xor=N: of groups of N members one may be lost.
    /// rs=K+M: of groups of K+M members M may be lost. Never two members of a group are on one host. Is kept
    #[arg(long, value_name = "partner|xor=N|rs=K+M", requires = "gang")]
    pub protect: Option<Protection>,
}

impl GangArgs {
    /// How long the others are waited for, seconds.
    pub fn wait_s(&self) -> u64 {
        self.gang_wait.unwrap_or(WAIT).as_secs()
    }
}
