//! A gang: the members of one job over several hosts, checkpointed and restarted as one. Each member is a job of its
//! own, with an agent of its own.
//!
//! * [`folder`]: what the store has of a gang. [`image`]: which images of the members are one image of the gang;
//!   [`takeover`]: who makes it if the leader is lost; [`choice`]: which one is restarted; [`agree`]: the same where
//!   each host has a store of its own.
//! * [`guard`]: what the hosts keep of each other's images, and what is rebuilt of it.
//! * [`key`], [`wire`], [`message`]: how members talk: TLS with keys that only who can read the store has.
//! * [`gather`], [`lead`], [`join`], [`waiting`]: how they find each other; [`reading`]: whether they are still there.
//!   [`seat`], [`round`]: what a member knows of the others, and how they meet. [`addresses`]: where a leader is
//!   reached. [`command`]: `holdfast checkpoint` of a gang.
//! * [`added`], [`ssh`]: members that are added to a gang of `--gang ssh`, and how they are started.
//!
//! Member 0, the leader, is in the middle of a star; the others know it alone. Invariants: a round is over for all
//! members or for none; an image of a gang is there when its manifest is, and names images that are committed. Fails
//! by: an error that names member, host and reason; the programs run on.

pub mod added;
mod addresses;
pub mod agree;
pub mod choice;
pub mod command;
pub mod folder;
pub mod gather;
#[cfg(test)]
mod growth_tests;
pub mod guard;
pub mod image;
mod join;
pub mod key;
mod lead;
pub mod message;
mod reading;
pub mod round;
pub mod seat;
pub mod ssh;
pub mod takeover;
#[cfg(test)]
mod tests;
pub mod waiting;
pub mod wire;
