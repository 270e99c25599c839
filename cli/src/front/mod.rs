//! The front: what `holdfast run` and `holdfast restart` are while the program runs.
//!
//! It starts the agent (`launch`), starts the program (`run`) or rebuilds it (`restart`,
//! `protected_restart`), passes signals on and returns the program's status (`supervise`). It is single-threaded: a
//! rebuilt process is born from it by clone.

mod baseline;
mod before_restart;
pub mod environment;
mod foreground;
pub mod launch;
pub mod locate;
mod newer_files;
mod page_server;
pub mod patience;
mod protected_restart;
pub mod restart;
pub mod restart_request;
pub mod run;
pub mod supervise;
pub mod wait_for_lock;
