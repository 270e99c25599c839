//! The same work for each of many things, by several threads at once.
//!
//! Called inside the stop, for what is read of stopped processes without tracing them (ptrace binds to one thread:
//! what it has to do is done meanwhile), and for scans of large memory: the programs are stopped and leave us their
//! processors.
//!
//! The threads live as long as the agent. They keep off the processor of the thread that calls them: a scheduler that
//! has just seen the other processors busy with programs that are being stopped puts them there otherwise, and
//! nothing is done at once for some milliseconds.

use holdfast_sys::clock;
use parking_lot::Mutex;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Threads, at most, with the one that calls.
const MAX_WORKERS: usize = 4;

/// As many threads as there are processors, within reason.
pub fn workers() -> usize {
    // Looking takes a tenth of a millisecond: it reads the files of the control group.
    static WORKERS: OnceLock<usize> = OnceLock::new();
    *WORKERS.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get).min(MAX_WORKERS))
}

/// The threads that help.
struct Helpers {
    pool: ThreadPool,
    /// Their ids, as they say them when they begin.
    tids: Vec<i32>,
    /// How many are not promised to anybody.
    free: AtomicUsize,
    /// Where they may run: the mask of the thread that made them.
    processors: Vec<u64>,
    /// What they keep off.
    kept_off: Mutex<Option<usize>>,
}

/// `None`: there is one processor, or no thread can be made.
fn helpers() -> Option<&'static Helpers> {
    static HELPERS: OnceLock<Option<Helpers>> = OnceLock::new();
    HELPERS.get_or_init(Helpers::new).as_ref()
}

/// Makes the threads. Before the first stop, which would be longer for it.
pub fn ready() {
    let _ = helpers();
}

impl Helpers {
    fn new() -> Option<Helpers> {
        let count = workers().checked_sub(1).filter(|count| *count > 0)?;
        let name = |_| "spread".to_owned();
        let pool = ThreadPoolBuilder::new().num_threads(count).thread_name(name).build();
        let pool = pool.inspect_err(|error| tracing::warn!(%error, "one thread only")).ok()?;
        let tids = pool.broadcast(|_| clock::own_thread());
        let processors = clock::affinity(0).unwrap_or_default();
        Some(Helpers { pool, tids, free: AtomicUsize::new(count), processors, kept_off: Mutex::default() })
    }

    /// Promises as many as are free, `most` at most.
    fn take(&self, most: usize) -> usize {
        let mut taken = 0;
        let _ = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
            taken = most.min(free);
            (taken > 0).then(|| free - taken)
        });
        taken
    }

    /// Has them run elsewhere than the calling thread, if they may. Nothing depends on it but time.
    fn keep_off(&self) {
        let Some(processor) = clock::processor().filter(|_| self.pool.current_thread_index().is_none())
        else {
            return;
        };
        let mut kept_off = self.kept_off.lock();
        if kept_off.replace(processor) == Some(processor) {
            return;
        }
        if let Some(others) = all_but(processor, &self.processors) {
            for tid in &self.tids {
                let _ = clock::set_affinity(*tid, &others);
            }
        }
    }
}

/// A mask of processors without one of them; `None`: there is no other.
fn all_but(processor: usize, mask: &[u64]) -> Option<Vec<u64>> {
    let mut others = mask.to_vec();
    if let Some(word) = others.get_mut(processor / 64) {
        *word &= !(1 << (processor % 64));
    }
    others.iter().any(|word| *word != 0).then_some(others)
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
    let wanted = workers.min(items.len()).saturating_sub(1);
    let helpers = if wanted > 0 { helpers() } else { None };
    // Who waited for one that is busy might wait for long: all that is left to do is done by then.
    let Some((helpers, count)) =
        helpers.map(|helpers| (helpers, helpers.take(wanted))).filter(|(_, count)| *count > 0)
    else {
        return (meanwhile(), items.iter().map(work).collect());
    };
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    let some = || {
        let mut own = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { break };
            own.push((index, work(item)));
        }
        results.lock().extend(own);
    };
    helpers.keep_off();
    let done = helpers.pool.in_place_scope(|scope| {
        for _ in 0..count {
            scope.spawn(|_| {
                some();
                helpers.free.fetch_add(1, Ordering::Relaxed);
            });
        }
        let done = meanwhile();
        some();
        done
    });
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|(index, _)| *index);
    (done, results.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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

    #[test]
    fn who_helps_may_be_helped() {
        let rows: Vec<u64> = (0..40).collect();
        let sum = |row: &u64| map(&rows, 4, |column| row * column).into_iter().sum::<u64>();
        let whole: u64 = rows.iter().sum();
        for _ in 0..50 {
            let (own, sums) = beside(&rows, 4, sum, || sum(&1));
            assert_eq!((own, sums), (whole, rows.iter().map(|row| row * whole).collect()));
        }
        if let Some(helpers) = helpers() {
            assert_eq!(helpers.take(0), 0);
        }
    }

    #[test]
    fn helpers_keep_off_the_processor_of_who_calls_them() {
        assert_eq!(all_but(1, &[0b110, 0]), Some(vec![0b100, 0]));
        assert_eq!(all_but(64, &[1, 3]), Some(vec![1, 2]));
        assert_eq!(all_but(64, &[0, 1]), None);
        assert_eq!(all_but(640, &[1]), Some(vec![1]));
        assert_eq!(all_but(0, &[]), None);
        if let Some(helpers) = helpers() {
            assert_eq!(helpers.tids.len(), workers() - 1);
            helpers.keep_off();
            assert!(helpers.tids.iter().all(|tid| clock::affinity(*tid).is_ok()));
        }
    }
}
