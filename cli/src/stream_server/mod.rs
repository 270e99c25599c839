//! Readers of streams on other hosts: `holdfast serve --listen` on the producer's host, `holdfast cat --from` there.
//!
//! * [`server`]: listens, and lets in who has the key; [`session`]: one reader.
//! * [`client`]: the reader's side; [`key_file`]: what proves who may ask. What both say: `holdfast_streams::message`.
//! * `settings::Export`: which streams, and which of their versions, may be read: none that was not named.
//!
//! Invariants: without the key there is no answer, and no byte of a stream goes to who has not asked for it; to its
//! producer a reader elsewhere is one beside it: it keeps what it has not read within the bound of the log. Fails by:
//! an answer that names what is wrong; the connection ends then.

pub mod client;
mod key_file;
pub mod server;
mod session;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
