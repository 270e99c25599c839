//! Several threads at one piece of work: the flush and the checks of an image.
//!
//! Fails by: the first error by order of the workers. A worker that fails must see to it itself that the others end.

use std::thread;

/// So many at least ask a server: it answers each after a while, and several at once as fast as one.
const FAR: usize = 8;

/// How many workers there should be for so many parts of work: one for each processor. `is_far`: what they wait for is
/// a server.
pub(crate) fn count(parts: usize, is_far: bool) -> usize {
    let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let most = if is_far { processors.max(FAR) } else { processors };
    most.min(parts).max(1)
}

/// Calls `work` once for each of `shares`, for the first in this thread and for each other in a thread called `name`.
///
/// The workers must share the whole among themselves as they go: a thread that cannot be started leaves its work to the
/// others.
pub(crate) fn run<T: Send, E: Send>(
    name: &str,
    shares: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let work = &work;
    let mut shares = shares.into_iter();
    let own = shares.next();
    thread::scope(|scope| {
        let others: Vec<_> = shares
            .filter_map(|share| {
                let thread = thread::Builder::new().name(name.into());
                thread.spawn_scoped(scope, move || work(share)).ok()
            })
            .collect();
        let mut result = own.map_or(Ok(()), work);
        for other in others {
            let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreError;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_work_and_the_first_error_counts() {
        let done = AtomicUsize::new(0);
        let count = |share: usize| {
            done.fetch_add(share, Ordering::Relaxed);
            Ok::<(), StoreError>(())
        };
        assert!(run("test", [1, 10, 100], count).is_ok());
        assert_eq!(done.into_inner(), 111);
        assert!(run("test", [], |(): ()| Ok::<(), StoreError>(())).is_ok());
        let failed = run("test", [0, 1, 2], |share| match share {
            0 => Ok(()),
            _ => Err(StoreError::misuse(Path::new("/"), share.to_string())),
        });
        assert!(failed.is_err_and(|error| error.to_string().contains("/: 1;")));
    }
}
