//! The same work for each of many things, by several threads at once.
//!
//! Called inside the stop, for what is read of stopped processes without tracing them (ptrace binds to one thread: what it has
//! to do is done meanwhile), and for scans of large memory: the programs stand still and leave us their processors.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

/// Threads, at most.
const MAX_WORKERS: usize = 4;

/// As many threads as there are processors, within reason.
pub fn workers() -> usize {
    // Looking takes a tenth of a millisecond: it reads the files of the control group.
    static WORKERS: OnceLock<usize> = OnceLock::new();
    *WORKERS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get).min(MAX_WORKERS))
}

/// What `work` makes of each item, in the order of the items. `workers`: the calling thread is one of them.
pub fn map<T: Sync, R: Send>(items: &[T], workers: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    beside(items, workers, work, || ()).1
}

/// The same while the calling thread first does something of its own, `meanwhile`, and helps only then.
pub fn beside<T: Sync, R: Send, M>(
    items: &[T],
    workers: usize,
    work: impl Fn(&T) -> R + Sync,
    meanwhile: impl FnOnce() -> M,
) -> (M, Vec<R>) {
    let workers = workers.min(items.len());
    if workers < 2 {
        return (meanwhile(), items.iter().map(work).collect());
    }
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    let some = || {
        let mut own = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            own.push((index, work(item)));
        }
        results.lock().unwrap_or_else(PoisonError::into_inner).extend(own);
    };
    let done = thread::scope(|scope| {
        // A thread that cannot be started leaves its work to this one.
        for _ in 1..workers {
            let _ = thread::Builder::new().name("spread".into()).spawn_scoped(scope, some);
        }
        let done = meanwhile();
        some();
        done
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(index, _)| *index);
    (done, results.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_the_items() {
        let items: Vec<u64> = (0..1000).collect();
        let squares: Vec<u64> = items.iter().map(|item| item * item).collect();
        for workers in [0, 1, 2, 4, 2000] {
            assert_eq!(map(&items, workers, |item| item * item), squares, "{workers}");
        }
        assert!(map(&[] as &[u64], 4, |item| *item).is_empty());
        for workers in [1, 2] {
            let own = thread::current().id();
            assert_eq!(
                beside(&items, workers, |item| item * item, || thread::current().id()),
                (own, squares.clone())
            );
        }
        assert!((1..=MAX_WORKERS).contains(&super::workers()));
    }
}
