//! Logs, their writers and their readers, as other crates use them.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod folder;
mod hostile;
mod model;
mod room;
