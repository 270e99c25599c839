//! `holdfast serve --listen`: streams of this host for readers on others.
//!
//! A thread for each reader. Invariant: only who has the key is answered, and only about what was exported; so many
//! readers at most, and who has not proved the key keeps none of them out for long. Fails by: an error before it
//! listens; later only sessions fail.

use super::key_file;
use super::session::{self, Offer};
use crate::args::ServeArgs;
use crate::exit::{Exit, Failure};
use crate::report;
use holdfast_streams::place;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Readers at once, those included that have not proved the key yet: more are closed at once.
const MOST_READERS: usize = 256;

/// See the head of the file. Runs until a signal ends it.
///
/// # Errors
/// It cannot begin.
pub fn run(args: &ServeArgs, listen: &str) -> Result<(), Failure> {
    if args.export.is_empty() {
        let what = "nothing may be read: name streams with --export, for example --export sim";
        return Err(Failure::new(Exit::Usage, what));
    }
    let Some(key) = &args.key else {
        return Err(Failure::new(Exit::Usage, "--listen needs --key FILE: who has it may read"));
    };
    let key = key_file::read(key, true)?;
    let config = key.server().map_err(|error| Failure::new(Exit::Internal, format!("TLS: {error}")))?;
    let listener = bind(listen)?;
    let at = listener.local_addr().map_err(|error| Failure::system("asking for the port", &error))?;
    report::result(&format!("listening at {at}\n"))?;
    let (exports, folder) = (args.export.clone(), place::folder(args.streams.as_deref()));
    accept_all(&listener, &Arc::new(Offer { config: Arc::new(config), exports, folder }));
    Ok(())
}

fn bind(listen: &str) -> Result<TcpListener, Failure> {
    let bad = |why: &dyn std::fmt::Display| {
        Failure::new(
            Exit::Usage,
            format!("--listen {listen}: {why}; write ADDRESS:PORT (port 0: a free one)"),
        )
    };
    let addresses: Vec<SocketAddr> = listen.to_socket_addrs().map_err(|error| bad(&error))?.collect();
    TcpListener::bind(addresses.as_slice()).map_err(|error| bad(&error))
}

pub(super) fn accept_all(listener: &TcpListener, offer: &Arc<Offer>) {
    let readers = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // EMFILE, ENOMEM: passes.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if readers.fetch_add(1, Ordering::Relaxed) >= MOST_READERS {
            readers.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (offer, of_thread) = (Arc::clone(offer), Arc::clone(&readers));
        let serve = move || {
            session::serve(&offer, stream);
            of_thread.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().name("reader".into()).spawn(serve).is_err() {
            readers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
