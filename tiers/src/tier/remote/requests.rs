//! The threads that talk to servers, and the one way in which the rest of this module waits for them.
//!
//! Each tier has a runtime of two threads of its own; nothing asynchronous is seen outside `tier/remote`.
//! Invariants: every wait has a limit; every failure is a [`TierError`] that names its object.

use super::failure::{self, SEEN, Seen};
use crate::tier::TierError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that wait for servers: they move bytes, and do the arithmetic of TLS and signatures.
const THREADS: usize = 2;

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Requests {
    /// None only while it is dropped.
    runtime: Option<Runtime>,
}

/// What became of an operation.
pub(super) struct Asked<T> {
    pub(super) result: Result<T, TierError>,
    /// How many requests it took; more than one: an answer was lost, or the server refused at first.
    pub(super) attempts: u32,
    /// Whether another write to the same name was under way.
    pub(super) undecided: bool,
    /// Whether the server, or the library for this kind of server, does not know the operation.
    pub(super) unsupported: bool,
}

impl Requests {
    pub(super) fn new(object: &str) -> Result<Requests, TierError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(2)
            .thread_name("holdfast-remote")
            .enable_all()
            .build()
            .map_err(TierError::io("start threads for", object))?;
        Ok(Requests { runtime: Some(runtime) })
    }

    pub(super) fn handle(&self) -> Handle {
        match &self.runtime {
            Some(runtime) => runtime.handle().clone(),
            None => unreachable!("taken in drop alone"),
        }
    }

    /// Waits for an operation on `object`, for `limit` at most.
    pub(super) fn ask<T>(
        &self,
        object: &str,
        limit: Duration,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Asked<T> {
        self.handle().block_on(asked(object.to_owned(), limit, work))
    }

    /// The same, where only the result counts.
    pub(super) fn wait<T>(
        &self,
        object: &str,
        limit: Duration,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, TierError> {
        self.ask(object, limit, work).result
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        // Does not wait: what is under way is of no use any more.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// An operation with its limit and its error; for tasks.
pub(super) async fn asked<T>(
    object: String,
    limit: Duration,
    work: impl Future<Output = object_store::Result<T>>,
) -> Asked<T> {
    let seen = Arc::new(Seen::default());
    let done = SEEN.scope(Arc::clone(&seen), tokio::time::timeout(limit, work)).await;
    let library = matches!(done, Ok(Err(object_store::Error::NotImplemented { .. })));
    let result = match done {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(failure::error(&object, &error, &seen)),
        Err(_) => {
            let why = format!("no answer within {} s", limit.as_secs());
            Err(TierError::Unavailable { object, why })
        }
    };
    Asked {
        result,
        attempts: seen.attempts(),
        undecided: seen.is_undecided(),
        unsupported: library || seen.is_unsupported(),
    }
}
