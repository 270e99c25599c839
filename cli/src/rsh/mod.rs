//! `holdfast rsh`: a command on another host, inside the job, as ssh runs one outside of it.
//!
//! * [`client`]: the command, which a launcher calls in place of ssh; [`line`]: its words; [`launchers`]: what
//!   launchers are told.
//! * [`server`]: the program of a member that was added to an open gang; [`session`]: one command of it.
//! * [`wire`]: what they say.
//!
//! Both are programs of the job: their connection is one between members of the gang, which a checkpoint drains and a
//! restart makes anew. Who starts the other member is the agent (`agent/event_loop/remote.rs`).

pub mod client;
pub mod launchers;
pub mod line;
pub mod server;
mod session;
mod wire;
