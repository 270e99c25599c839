//! `holdfast serve --listen`: streams of this host for readers on others.
//!
//! A thread for each reader. Invariant: only who has the key is answered, and only about what was exported; so many
//! readers at most, and who has not proved the key keeps none of them out for long. Fails by: an error before it
//! listens; later only sessions fail.

use super::key_file;
use super::session::{self, Offer};
use crate::args::ServeArgs;
use crate::exit::{Exit, Failure};
use crate::listening;
use crate::report;
use holdfast_streams::place;
use std::net::TcpListener;
use std::sync::Arc;

/// Readers at once, those included that have not proved the key yet: more are closed at once.
const MOST_READERS: usize = 256;

/// See the head of the file. Runs until a signal ends it.
///
/// # Errors
/// It cannot begin.
pub fn run(args: &ServeArgs, listen: &str) -> Result<(), Failure> {
    let key = args.key.as_deref().ok_or_else(|| Failure::new(Exit::Usage, "--listen needs --key FILE"))?;
    let key = key_file::read(key, true)?;
    let config = key.server().map_err(|error| Failure::new(Exit::Internal, format!("TLS: {error}")))?;
    let listener = listening::at("--listen", listen)?;
    let at = listener.local_addr().map_err(|error| Failure::system("asking for the port", &error))?;
    report::result(&format!("listening at {at}\n"))?;
    let (exports, folder) = (args.export.clone(), place::folder(args.streams.as_deref()));
    accept_all(&listener, Offer { config: Arc::new(config), exports, folder });
    Ok(())
}

/// A thread for each.
pub(super) fn accept_all(listener: &TcpListener, offer: Offer) {
    listening::accept_all(listener, ("reader", MOST_READERS), move |stream, _turn| {
        session::serve(&offer, stream);
    });
}
