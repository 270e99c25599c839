//! `holdfast restart`, until the new processes belong to the agent: [`spawn`] tries the ways to the old ids one
//! after the other.

mod attempt;
pub mod counted;
pub mod dying;
mod id_maps;
pub mod ids;
mod last_pid;
mod namespace;
pub mod spawn;
mod system_v_users;
