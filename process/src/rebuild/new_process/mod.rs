//! The new processes, from the fork to their exec: ordinary programs that give themselves what the old ones had.
//!
//! [`child`] says in which order; [`files`] makes all descriptors, with one module for each kind; [`fork_tree`] all
//! processes.

mod accepted;
pub mod child;
mod cwd;
mod datagrams;
mod files;
mod flight;
mod fork_tree;
pub mod front_terminal;
mod missing_folders;
mod mounts;
mod namespaces;
mod networks;
mod objects;
mod open;
mod pid_namespaces;
mod queues;
pub mod regular;
mod senders;
mod shared_memory;
mod socket_buffers;
pub mod socket_files;
mod sockets;
mod terminals;
pub mod unlinked;
mod unsettled;
mod urgent;
