//! `--gang R/S|auto|ssh`: which member of a gang a job is. The place is kept in `job.json`.
//!
//! Called by `run` and `restart`; the agent reads the place. Invariant: a place has a member below the number of
//! members. Fails by: words that say what is accepted.

use holdfast_tiers::redundancy::Protection;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Most members that a gang may have.
pub const MOST_MEMBERS: u32 = 10_000;

/// What launchers tell a rank of itself: its number, and how many there are. The innermost launcher counts: a batch
/// script of Slurm has the variables of its own step (srun(1), mpirun(1) of Open MPI, the PMI of MPICH).
const VARIABLES: [[&str; 2]; 3] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
    ["PMI_RANK", "PMI_SIZE"],
    ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"],
];

/// The option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GangChoice {
    /// This member of so many.
    Place(u32, u32),
    /// As the launcher says.
    Auto,
    /// The leader of an open gang, to which others are added by ssh.
    Ssh,
    /// A member that is added to one.
    Added(u32),
}

/// A member of a gang.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GangPlace {
    /// Name of the gang.
    pub name: String,
    /// This member; the first, 0, is the leader.
    pub member: u32,
    /// How many there are; of an open gang, at its start.
    pub members: u32,
    /// Whether others are added while it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// Of a member that is added to a gang that runs: what tells this start of it from others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    /// Of an open gang that its leader restarts: where the members are, in the words of ssh; the first is its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Where the leader listens, if that was said: `ADDRESS:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// How long the others are waited for, seconds.
    pub wait_s: u64,
    /// The folder that all hosts share, if each has a store of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// What the hosts keep of each other's images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protect: Option<Protection>,
}

impl GangPlace {
    /// The name of the job of one of its members.
    pub fn job_of(&self, member: u32) -> String {
        member_job(&self.name, member)
    }

    /// Whether it is the one in the middle.
    pub fn is_leader(&self) -> bool {
        self.member == 0
    }
}

/// The name of the job of a member.
pub fn member_job(gang: &str, member: u32) -> String {
    format!("{gang}.{member}")
}

/// Reads `R/S`, `auto` or `ssh`, or `R/open`, by which a leader adds a member.
///
/// # Errors
/// Says what is accepted.
pub fn parse_gang(text: &str) -> Result<GangChoice, String> {
    if text == "auto" {
        return Ok(GangChoice::Auto);
    }
    if text == "ssh" {
        return Ok(GangChoice::Ssh);
    }
    if let Some(member) = text.strip_suffix("/open").and_then(|member| member.parse().ok()) {
        return match member {
            1..MOST_MEMBERS => Ok(GangChoice::Added(member)),
            _ => Err(format!("members are added to a gang up to number {}, not {member}", MOST_MEMBERS - 1)),
        };
    }
    let numbers = text.split_once('/').and_then(|(r, s)| Some((r.parse().ok()?, s.parse().ok()?)));
    let Some((member, members)) = numbers else {
        return Err("write MEMBER/MEMBERS, for example 0/2 and 1/2, or auto, or ssh".into());
    };
    check(member, members).map(|()| GangChoice::Place(member, members))
}

fn check(member: u32, members: u32) -> Result<(), String> {
    if members == 0 || members > MOST_MEMBERS {
        return Err(format!("a gang has 1 to {MOST_MEMBERS} members, not {members}"));
    }
    if member >= members {
        return Err(format!("the members of a gang of {members} are 0 to {}, not {member}", members - 1));
    }
    Ok(())
}

impl GangChoice {
    /// Whether it is of a gang to which others are added.
    pub fn is_open(self) -> bool {
        matches!(self, GangChoice::Ssh | GangChoice::Added(_))
    }

    /// The member and how many there are; `variable` reads the environment.
    ///
    /// # Errors
    /// No launcher says it, or says something else.
    pub fn place(self, variable: impl Fn(&str) -> Option<String>) -> Result<(u32, u32), String> {
        match self {
            GangChoice::Place(member, members) => return Ok((member, members)),
            GangChoice::Ssh => return Ok((0, 1)),
            GangChoice::Added(member) => return Ok((member, member.saturating_add(1))),
            GangChoice::Auto => {}
        }
        for [rank, size] in VARIABLES {
            let (Some(rank_text), Some(size_text)) = (variable(rank), variable(size)) else { continue };
            let (Ok(member), Ok(members)) = (rank_text.parse(), size_text.parse()) else {
                return Err(format!("{rank}={rank_text} and {size}={size_text} are no member of a gang"));
            };
            check(member, members).map_err(|why| format!("{rank}={rank_text}, {size}={size_text}: {why}"))?;
            return Ok((member, members));
        }
        Err(format!(
            "--gang auto: no launcher has set {}; write --gang MEMBER/MEMBERS",
            VARIABLES.map(|[rank, size]| format!("{rank} and {size}")).join(", or ")
        ))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_member_of_so_many() {
        assert_eq!(parse_gang("0/2"), Ok(GangChoice::Place(0, 2)));
        assert_eq!(parse_gang("auto"), Ok(GangChoice::Auto));
        assert_eq!(parse_gang("ssh").map(|choice| choice.place(|_| None)), Ok(Ok((0, 1))));
        assert_eq!(parse_gang("3/open").map(|choice| choice.place(|_| None)), Ok(Ok((3, 4))));
        for wrong in
            ["0/open", "10000/open", "x/open", "2/2", "0/0", "1", "-1/2", "0/2/3", "", "a/b", "0/10001"]
        {
            assert!(parse_gang(wrong).is_err(), "{wrong}");
        }
        assert_eq!(member_job("sim", 3), "sim.3");
    }

    #[test]
    fn the_innermost_launcher_says_it() {
        let of = |set: &'static [(&str, &str)]| {
            GangChoice::Auto.place(move |name| {
                set.iter().find(|(one, _)| *one == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "4")]), Ok((3, 4)));
        let both = &[
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
        ];
        assert_eq!(of(both), Ok((1, 2)));
        assert!(of(&[]).unwrap_err().contains("--gang MEMBER/MEMBERS"));
        assert!(of(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]).unwrap_err().contains("PMI_RANK=2"));
        assert!(of(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]).is_err());
        assert_eq!(GangChoice::Place(1, 2).place(|_| None), Ok((1, 2)));
    }
}
