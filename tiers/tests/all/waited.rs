//! A thread of the program waits for a page while a slow tier is written: the page is stored before the rest of the
//! part that a worker has taken.

use crate::common::{Content, MemorySource, TempDir, commit_record, options, read_all, run};
use holdfast_image::pages::{Inherited, PageError, PageRun, PageSource};
use holdfast_image::{Addr, Epoch, PAGE_SIZE, PageCount};
use holdfast_tiers::{PipelineOptions, Store};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGES: u64 = 128;
const PART: u64 = 64;
/// So many pages of noise take a while.
const RATE: u64 = 4 << 20;

/// Pages from 0 on. Once something is stored, a thread waits for a page until that is stored, too.
struct Awaited {
    memory: MemorySource,
    page: u64,
    /// The runs that are to be handed out.
    queue: Mutex<VecDeque<PageRun>>,
    waits: AtomicBool,
}

impl Awaited {
    fn new(page: u64) -> Awaited {
        let memory = MemorySource::new(vec![run(0, PAGES)], |_| Content::Noise);
        let queue = Mutex::new(VecDeque::from(memory.runs.clone()));
        Awaited { memory, page, queue, waits: AtomicBool::new(false) }
    }
    /// What was stored, in the order in which it was.
    fn order(&self) -> Vec<PageRun> {
        self.memory.released.lock().unwrap().clone()
    }
}

/// Takes a page out of the run that has it.
fn take_out(queue: &mut VecDeque<PageRun>, page: u64) -> Option<PageRun> {
    let wanted = run(page, 1);
    let at = queue.iter().position(|all| all.start <= wanted.start && wanted.end() <= all.end())?;
    let all = queue.remove(at)?;
    let parts = [PageRun::between(all.start, wanted.start), PageRun::between(wanted.end(), all.end())];
    parts.into_iter().rev().filter(|part| part.pages.0 > 0).for_each(|part| queue.insert(at, part));
    Some(wanted)
}

impl PageSource for Awaited {
    fn pages(&self) -> PageCount {
        self.memory.pages()
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        let mut queue = self.queue.lock().unwrap();
        let awaited = self.waits.load(Ordering::Relaxed).then(|| take_out(&mut queue, self.page)).flatten();
        if let Some(awaited) = awaited {
            return into.push(awaited);
        }
        let Some(next) = queue.pop_front() else { return };
        let pages = most.0.min(next.pages.0);
        let first = PageRun { start: next.start, pages: PageCount(pages) };
        if first.end() < next.end() {
            queue.push_front(PageRun::between(first.end(), next.end()));
        }
        into.push(first);
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        self.memory.read(start, buffer)
    }
    fn release(&self, stored: PageRun) {
        let page = Addr(self.page * PAGE_SIZE);
        let waits = self.order().is_empty() || self.waits.load(Ordering::Relaxed);
        self.waits.store(waits && !(stored.start <= page && page < stored.end()), Ordering::Relaxed);
        self.memory.release(stored);
    }
    fn make_way(&self, rest: &mut Vec<PageRun>) -> bool {
        let waits = self.waits.load(Ordering::Relaxed);
        if waits {
            let mut queue = self.queue.lock().unwrap();
            rest.drain(..).for_each(|run| queue.push_front(run));
        }
        waits
    }
    fn is_urgent(&self) -> bool {
        false
    }
    fn has_several(&self) -> bool {
        false
    }
}

/// Stores it, and returns in which order.
fn stored(page: u64, rate: Option<u64>) -> Vec<PageRun> {
    let dir = TempDir::new();
    let job = Store::open(&dir.store()).unwrap().create_job("job").unwrap();
    let lock = job.lock().unwrap();
    let source = Awaited::new(page);
    let mut writer = job.begin(&lock, Epoch(1), None).unwrap();
    let options = PipelineOptions { rate, part_pages: Some(PART), ..options(1) };
    writer.write_pages(&source, &Inherited::default(), &options, &|_, _| ()).unwrap();
    writer.commit(commit_record()).unwrap();
    source.memory.assert_all_released();
    assert_eq!(read_all(&job.open_image(Epoch(1)).unwrap()).unwrap(), source.memory.pages);
    source.order()
}

#[test]
fn what_a_thread_waits_for_is_stored_before_the_rest_of_a_part() {
    // Of the part that the worker has, and of one that nobody has yet.
    for page in [60, 100] {
        let order = stored(page, Some(RATE));
        assert_eq!(order[1], run(page, 1), "page {page}: {order:?}");
        assert!(order[0].end() <= run(PART / 2, 1).start, "page {page}: {order:?}");
        assert_eq!(order[2].start, order[0].end(), "page {page}: {order:?}");
    }
    // On a fast tier a part is a frame.
    assert_eq!(stored(100, None)[..2], [run(0, PART), run(100, 1)]);
}

#[test]
fn frames_are_short_as_long_as_a_thread_waits() {
    // For a page that never comes.
    let order = stored(PAGES, Some(RATE));
    assert!(order.is_sorted(), "{order:?}");
    assert!(order[1..].iter().all(|run| run.pages < order[0].pages), "{order:?}");
}
