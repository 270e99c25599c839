//! Copying pages into a new process, by several threads, in the order in which they are stored.
//!
//! Called by [`super::rebuild_process`] once the address space is complete. Private memory that has no page yet is
//! filled by a userfaultfd: a page is made with its content, instead of being made, zeroed and written (measured for
//! 1 GiB by two threads: 0.37 to 0.43 s of processor time instead of 0.53 to 0.58), and it is a page of 4 KiB, so that
//! memory is as large as it was. Where first touches get huge pages, because the program or the system says so, memory
//! is written by process_vm_writev(2), which gets them too; as is shared memory, that of files, and everything if
//! there is no userfaultfd. Read-only memory is written through `/proc/PID/mem`.
//!
//! Huge pages for memory that would not have them are not asked for: they take half of the time where free ones lie
//! ready, but 1 to 2.5 s per GiB where the kernel has to make them, or a hypervisor has taken free ones back; they are
//! split at the first write after the tracker is armed; and a part that the program gives back stays used.
//!
//! What must hold: nothing else touches the new process meanwhile. How it fails: names the file and offset that could
//! not be read, or the address that could not be written.

use super::address_space::AddressSpaceBuilder;
use super::pages::{CopiedRun, PagesPlan};
use super::tracker;
use crate::rebuild::error::RebuildError;
use holdfast_image::Addr;
use holdfast_image::pages::{PageError, PageProvider, PageRun};
use holdfast_image::record::{Backing, ProcessRecord, Region};
use holdfast_sys::procmem::{self, ForcedMemory};
use holdfast_sys::userfault::PageFiller;
use std::fs;
use std::io;
use std::ops::Range;

/// Less memory is not worth making a userfaultfd for: bytes.
const LEAST: u64 = 4 << 20;
/// Bytes that are written at once where all are zero.
const ZEROS: u64 = 1 << 20;
/// What first touches get (Documentation/admin-guide/mm/transhuge.rst).
const THP_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// PR_THP_DISABLE_EXCEPT_ADVISED (include/uapi/linux/prctl.h, Linux 6.18), as [`ProcessRecord`] has it.
const EXCEPT_ADVISED: u32 = 2;

/// Which memory gets huge pages when it is touched first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HugePages {
    Never,
    Advised,
    Always,
}

impl HugePages {
    /// For a program, on a host whose setting reads so.
    fn of(setting: &str, record: &ProcessRecord) -> HugePages {
        let host = match setting {
            some if some.contains("[always]") => HugePages::Always,
            some if some.contains("[madvise]") => HugePages::Advised,
            _ => HugePages::Never,
        };
        match record.attributes.thp_disable | u32::from(record.flags.thp_disabled) {
            0 => host,
            some if some & EXCEPT_ADVISED != 0 && host != HugePages::Never => HugePages::Advised,
            _ => HugePages::Never,
        }
    }

    fn are_for(self, region: &Region) -> bool {
        let has = |flag: &str| region.vm_flags.iter().any(|f| f == flag);
        match self {
            HugePages::Never => false,
            HugePages::Advised => has("hg"),
            HugePages::Always => !has("nh"),
        }
    }
}

/// The parts of private memory that are filled by a userfaultfd: regions without what is mapped from segments, as far
/// as anything is copied there. Ascending.
fn fresh_ranges(record: &ProcessRecord, plan: &PagesPlan, huge: HugePages) -> Vec<Range<u64>> {
    let fits = |region: &&Region| {
        region.backing == Backing::Anonymous
            && region.huge_shift().is_none()
            && !region.vm_flags.iter().any(|flag| flag == "dp")
            && !huge.are_for(region)
    };
    let mut mapped = plan.mapped.iter().peekable();
    let mut ranges = Vec::new();
    for region in record.regions.iter().filter(fits) {
        let mut start = region.start.0;
        while mapped.next_if(|run| run.start < start).is_some() {}
        while let Some(run) = mapped.next_if(|run| run.start < region.end.0) {
            ranges.push(start..run.start);
            start = run.start + run.len;
        }
        ranges.push(start..region.end.0);
    }
    ranges.retain(|range| bytes_in(&plan.copied, range) > 0);
    ranges
}

/// Bytes of a range that are copied and not zero.
fn bytes_in(copied: &[CopiedRun], range: &Range<u64>) -> u64 {
    let from = copied.partition_point(|run| run.end() <= range.start);
    let inside = copied[from..].iter().take_while(|run| run.start < range.end).filter(|run| !run.zero);
    inside.map(|run| run.end().min(range.end) - run.start.max(range.start)).sum()
}

/// Memory of the new process that a userfaultfd fills.
struct FreshMemory {
    filler: PageFiller,
    /// Ascending.
    ranges: Vec<Range<u64>>,
}

impl FreshMemory {
    /// `None`: there is little of it, or no userfaultfd.
    fn of(builder: &AddressSpaceBuilder<'_>, pid: i32, plan: &PagesPlan) -> Option<FreshMemory> {
        let setting = fs::read_to_string(THP_ENABLED).unwrap_or_default();
        let mut ranges = fresh_ranges(builder.record, plan, HugePages::of(&setting, builder.record));
        if ranges.iter().map(|range| bytes_in(&plan.copied, range)).sum::<u64>() < LEAST {
            return None;
        }
        let fd = tracker::descriptor(builder, pid).ok().flatten()?;
        let filler = PageFiller::take_over(fd).ok()?;
        ranges.retain(|range| filler.register(range.start, range.end).is_ok());
        Some(FreshMemory { filler, ranges })
    }

    /// Whether it has made these pages. If not, they can be written.
    fn put(&self, start: u64, bytes: &[u8]) -> bool {
        let at = self.ranges.partition_point(|range| range.end <= start);
        let Some(range) = self.ranges.get(at).filter(|range| range.start <= start) else { return false };
        let put = self.filler.put(start, bytes);
        if let Err(error) = &put {
            tracing::info!("memory at {start:#x} is written instead of made: {error}");
            // A write would wait for the page, or fail. Another thread may have been here before.
            let _ = self.filler.unregister(range.start, range.end);
        }
        put.is_ok()
    }
}

/// Who writes into the new process.
struct Writer<'a> {
    tid: i32,
    forced: &'a ForcedMemory,
    copied: &'a [CopiedRun],
    fresh: Option<FreshMemory>,
}

impl Writer<'_> {
    /// Writes runs of pages, each of which lies in one of those that are copied.
    fn put(&self, runs: &[(Addr, &[u8])]) -> Result<(), PageError> {
        let mut rest = Vec::with_capacity(runs.len());
        for &(Addr(start), bytes) in runs {
            if self.fresh.as_ref().is_some_and(|fresh| fresh.put(start, bytes)) {
                continue;
            }
            let at = self.copied.partition_point(|run| run.end() <= start);
            if self.copied.get(at).is_some_and(|run| run.forced) {
                self.forced.write(start, bytes).map_err(|error| failed(start, &error))?;
            } else {
                rest.push((start, bytes));
            }
        }
        for some in rest.chunks(procmem::MANY) {
            procmem::write_many(self.tid, some).map_err(|error| failed(some[0].0, &error))?;
        }
        Ok(())
    }

    /// Writes zeros over what the files have there.
    fn put_zeros(&self) -> Result<(), PageError> {
        let zeros = vec![0; usize::try_from(ZEROS).unwrap_or(0)];
        for run in self.copied.iter().filter(|run| run.zero) {
            let mut start = run.start;
            while start < run.end() {
                let len = ZEROS.min(run.end() - start);
                self.put(&[(Addr(start), &zeros[..usize::try_from(len).unwrap_or(0)])])?;
                start += len;
            }
        }
        Ok(())
    }
}

fn failed(start: u64, error: &io::Error) -> PageError {
    io::Error::new(error.kind(), format!("writing at {start:#x}: {error}")).into()
}

/// Copies everything that is to be copied into the process of `pid`.
///
/// # Errors
/// Names the file and offset that could not be read, or the address that could not be written.
pub fn fill(
    builder: &AddressSpaceBuilder<'_>,
    plan: &PagesPlan,
    pages: &dyn PageProvider,
    pid: i32,
    forced: &ForcedMemory,
) -> Result<(), RebuildError> {
    let writer =
        Writer { tid: pid, forced, copied: &plan.copied, fresh: FreshMemory::of(builder, pid, plan) };
    let stored = plan.copied.iter().filter(|run| !run.zero);
    let wanted: Vec<PageRun> = stored.map(|run| PageRun::between(Addr(run.start), Addr(run.end()))).collect();
    pages
        .gather(&wanted, &|runs| writer.put(runs))
        .and_then(|()| writer.put_zeros())
        .map_err(RebuildError::pages("filling the memory"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rebuild::agent::pages::MappedRun;
    use crate::rebuild::testing::{record, region};
    use holdfast_image::PAGE_SIZE;

    fn copied(start: u64, pages: u64, zero: bool) -> CopiedRun {
        CopiedRun { start, len: pages * PAGE_SIZE, zero, forced: false }
    }

    #[test]
    fn what_has_no_pages_yet_is_filled_around_what_is_mapped() {
        let at = |page: u64| 0x100_0000 + page * PAGE_SIZE;
        let advised = Region { vm_flags: vec!["hg".into()], ..region(at(600), 50, 3, Backing::Anonymous) };
        let file = Backing::PrivateFile { file: 0, offset: 0 };
        let record = record(vec![
            region(at(0), 400, 3, Backing::Anonymous),
            region(at(400), 100, 1, file),
            region(at(500), 100, 1, Backing::Anonymous),
            advised,
        ]);
        let run = |page, pages| MappedRun {
            start: at(page),
            len: pages * PAGE_SIZE,
            prot: 3,
            segment: 0,
            offset: 0,
        };
        let plan = PagesPlan {
            mapped: vec![run(0, 64), run(100, 64), run(200, 100)],
            copied: vec![
                copied(at(70), 20, false),
                copied(at(170), 10, true),
                copied(at(320), 180, false),
                copied(at(510), 1, false),
                copied(at(600), 50, false),
            ],
            ..PagesPlan::default()
        };
        let first = [at(64)..at(100), at(300)..at(400), at(500)..at(600)];
        assert_eq!(fresh_ranges(&record, &plan, HugePages::Advised), first);
        let all: Vec<Range<u64>> = first.iter().cloned().chain(std::iter::once(at(600)..at(650))).collect();
        assert_eq!(fresh_ranges(&record, &plan, HugePages::Never), all);
        assert!(fresh_ranges(&record, &plan, HugePages::Always).is_empty());
        let bytes: Vec<u64> = first.iter().map(|range| bytes_in(&plan.copied, range) / PAGE_SIZE).collect();
        assert_eq!(bytes, [20, 80, 1]);
    }

    #[test]
    fn huge_pages_are_as_host_and_program_say() {
        let plain = record(Vec::new());
        let mut disabled = plain.clone();
        disabled.flags.thp_disabled = true;
        let mut except = plain.clone();
        except.attributes.thp_disable = 1 | EXCEPT_ADVISED;
        let of = |setting: &str| [&plain, &disabled, &except].map(|record| HugePages::of(setting, record));
        let (never, advised, always) = (HugePages::Never, HugePages::Advised, HugePages::Always);
        assert_eq!(of("[always] madvise never\n"), [always, never, advised]);
        assert_eq!(of("always [madvise] never\n"), [advised, never, advised]);
        assert_eq!(of("always madvise [never]\n"), [never; 3]);
        assert_eq!(of(""), [never; 3]);
    }
}
