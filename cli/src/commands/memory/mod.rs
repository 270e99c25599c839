//! `holdfast cat --image`: memory of a program as an image has it, by the names of the program's variables. The program
//! need not know of it, and is stopped by nothing but its checkpoints.
//!
//! Called by `commands::cat`. `region` is what was asked for, `symbols` where that is, `space` what is there. What must
//! hold: bytes are those of the instant of one image, checked before any is printed; what an image does not have is
//! refused by name, never zero.

mod region;
mod space;
mod symbols;
mod unchanged;

use crate::args::CatArgs;
use crate::client::Agent;
use crate::exit::{Exit, Failure};
use crate::names::{self, ImageName};
use crate::report;
use holdfast_image::Epoch;
use holdfast_image::record::ProcessRecord;
use holdfast_tiers::{Image, Job};
use region::Region;
use space::Space;
use std::path::Path;
use std::thread;
use std::time::Duration;
use symbols::Symbols;

/// Between two looks for a new image.
const POLL: Duration = Duration::from_millis(200);

/// See the head of the file.
///
/// # Errors
/// There is no such image, process or variable; the image does not have its memory.
pub fn run(args: &CatArgs, root: Option<&Path>) -> Result<(), Failure> {
    let usage = |why: String| Failure::new(Exit::Usage, why);
    let name = names::parse_image(&args.stream).map_err(usage)?;
    let region = args.object.as_deref().map(Region::parse).transpose().map_err(usage)?;
    let store = names::open_store(root)?;
    let job = names::open_job(&store, &name.job)?;
    match &region {
        Some(region) if args.follow => follow(&job, &name, (region, args.process)),
        region => {
            let image = names::open_image(&job, name.epoch)?;
            let record = names::record_of(&image)?;
            let process = process_of(&record, args.process, image.epoch())?;
            match region {
                Some(region) => report::print_bytes(&bytes_of(&image, &record, process, region)?).map(drop),
                None => list(process, (&job, image.epoch()), args.json),
            }
        }
    }
}

/// Prints a region of each image to come, and of the named one before, until the job has ended.
fn follow(job: &Job, name: &ImageName, (region, process): (&Region, Option<i32>)) -> Result<(), Failure> {
    let mut last = match name.epoch {
        Some(epoch) => Epoch(epoch.0.saturating_sub(1)),
        None => job.images()?.last().map_or(Epoch(0), |info| info.epoch),
    };
    loop {
        // Before the look for images: those that were committed until then are seen.
        let (is_over, seen) = (Agent::connect(job).is_err(), last);
        for info in job.images()?.into_iter().filter(|info| info.epoch > seen) {
            last = info.epoch;
            let image = match job.open_image(info.epoch) {
                Ok(image) => image,
                // It was removed since, as one of the oldest.
                Err(_) if job.images()?.iter().all(|other| other.epoch != info.epoch) => continue,
                Err(error) => return Err(error.into()),
            };
            let record = names::record_of(&image)?;
            let process = process_of(&record, process, image.epoch())?;
            if !report::print_bytes(&bytes_of(&image, &record, process, region)?)? {
                return Ok(());
            }
        }
        if is_over {
            return Ok(());
        }
        thread::sleep(POLL);
    }
}

fn process_of(record: &ProcessRecord, pid: Option<i32>, epoch: Epoch) -> Result<&ProcessRecord, Failure> {
    let Some(pid) = pid else { return Ok(record) };
    record.processes().find(|process| process.pid == pid).ok_or_else(|| {
        let all: Vec<String> = record.processes().map(|process| process.pid.to_string()).collect();
        let what = format!("image {epoch} has no process {pid}: it has {}", all.join(", "));
        Failure::new(Exit::NotFound, what)
    })
}

fn bytes_of(
    image: &Image,
    record: &ProcessRecord,
    process: &ProcessRecord,
    region: &Region,
) -> Result<Vec<u8>, Failure> {
    let space = Space::new(image, record, process)?;
    let (start, bytes) = match region {
        Region::At { address, bytes } => (*address, *bytes),
        Region::Variable(name) => {
            let variable = Symbols::of(process)?.find(name)?;
            (variable.address, variable.bytes)
        }
        Region::Pointed { pointer, bytes } => {
            let variable = Symbols::of(process)?.find(pointer)?;
            let Ok(value) = <[u8; 8]>::try_from(space.read(variable.address, variable.bytes)?) else {
                let what = format!("{pointer} has {} bytes, and a pointer has 8", variable.bytes);
                return Err(Failure::new(Exit::Refused, what));
            };
            (u64::from_le_bytes(value), *bytes)
        }
    };
    space.read(start, bytes)
}

fn list(process: &ProcessRecord, (job, epoch): (&Job, Epoch), json: bool) -> Result<(), Failure> {
    let symbols = Symbols::of(process)?;
    if json {
        let all: Vec<_> = symbols
            .all()
            .map(|(name, variable)| serde_json::json!({ "symbol": name, "bytes": variable.bytes }))
            .collect();
        let fields = serde_json::json!({
            "job": job.name(), "image": epoch, "process": process.pid, "symbols": all,
        });
        return report::print_json("memory", fields);
    }
    let rows: Vec<Vec<String>> = symbols
        .all()
        .map(|(name, variable)| vec![name.escape_debug().to_string(), report::size(variable.bytes)])
        .collect();
    report::print(&report::table(&["VARIABLE", "SIZE"], &rows, &[1]))
}
