//! `holdfast report`: one page of HTML about a job: how long each image stopped it, how large each is, how the flush
//! went, where they are.
//!
//! What it says is what `list` and `show` say, side by side. The file appears whole, or not at all. Fails by: there is
//! no such job, the file cannot be written. An image that cannot be opened is a row that says why.

use crate::commands::restarts::{self, Restarted};
use crate::exit::Failure;
use crate::html::chart::{Bar, Column, stacked, timeline};
use crate::html::{escape, page, section, table, tiles};
use crate::last_restart::LastRestart;
use crate::report::{self, age, short_time, size, utc};
use crate::settings::Recipe;
use crate::tiers;
use holdfast_image::PAGE_SIZE;
use holdfast_image::bytes::Name;
use holdfast_image::manifest::{EpochFigures, FlushFigures, StopBreakdown};
use holdfast_tiers::stack::TiersRecord;
use holdfast_tiers::{Image, ImageInfo, Job};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Parts of a stop, as they are drawn.
const STOP_PARTS: [&str; 9] = [
    "threads stopped",
    "state read",
    "tracking",
    "memory copied",
    "clone",
    "resumed",
    "CUDA checkpoint",
    "CUDA restore",
    "other",
];

/// First writes during the flush.
const WRITES: [&str; 4] =
    ["WAIT: until it was stored", "COW: copied first", "AVOIDED: stored already", "AFTER the flush"];

/// An image and what its manifest says.
struct Row {
    info: ImageInfo,
    /// Of one that can be opened.
    figures: Option<(StopBreakdown, FlushFigures, EpochFigures)>,
    tiers: Vec<String>,
}

/// Writes the page to a file, or to standard output (`-`).
///
/// # Errors
/// See the head of the file.
pub fn run(name: &str, output: &Path, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, name)?;
    let html = html(&job)?;
    if output == Path::new("-") {
        return report::print(&html);
    }
    write(output, &html)
        .map_err(|error| Failure::system(format_args!("writing {}", output.display()), &error))?;
    report::result(&format!("{}: report of job {name}\n", output.display()))
}

/// Beside the file first, then under its name: a reader never sees half of it.
fn write(output: &Path, html: &str) -> io::Result<()> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let name = output.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut young = std::ffi::OsString::from(".");
    young.push(name);
    young.push(format!(".{}", std::process::id()));
    let young: PathBuf = folder.join(young);
    let made = fs::File::create_new(&young).and_then(|mut file| file.write_all(html.as_bytes()));
    let made = made.and_then(|()| fs::rename(&young, output));
    if made.is_err() {
        // The name is of this process, so what is there is ours, or was there and cannot be ours.
        let _ = fs::remove_file(&young);
    }
    made
}

/// Of more images only the sums are told: a page of thousands is of no use.
const SHOWN: usize = 200;

fn html(job: &Job) -> Result<String, Failure> {
    let record = TiersRecord::read(job);
    let mut rows = Vec::new();
    let mut last: Option<Image> = None;
    let infos = job.images()?;
    let first = infos.len().saturating_sub(SHOWN);
    for (number, info) in infos.into_iter().enumerate() {
        let opened = Some(info.epoch).filter(|_| number >= first);
        let opened = opened.and_then(|epoch| crate::names::open_image(job, Some(epoch)).ok());
        let figures =
            opened.as_ref().map(|image| (*image.stop(), *image.figures(), image.epoch_figures().clone()));
        let tiers = tiers::names_of(job, &record, info.epoch);
        last = opened.or(last);
        rows.push(Row { info, figures, tiers });
    }
    let mut body = head(job, last.as_ref());
    if rows.is_empty() {
        body.push_str("<p>It has no image yet.</p>\n");
    } else {
        body.push_str(&summary(&rows));
        let rows = &rows[first..];
        if first > 0 {
            body.push_str(&format!("<p>Copies above, and all below: of the newest {SHOWN} images.</p>\n"));
        }
        body.push_str(&charts(rows));
        body.push_str(&section("Images", "Times are UTC.", &images(rows)));
        body.push_str(&section(
            "Costs",
            "What each image cost the program: its stop; the time that writers were held because the bound on copies \
             was reached; first writes during the flush by class; most memory that copies took at once. And what it \
             cost the store: what was read, what was left of what could be compressed, what was written.",
            &costs(rows),
        ));
    }
    body.push_str(&lower_tiers(&record));
    body.push_str(&after_failures(&restarts::of(job)));
    if let Some(last) = LastRestart::read(job) {
        let text = format!("Image {}, {}: {}", last.image, short_time(last.ns), last.line());
        body.push_str(&section("Last restart", &text, ""));
    }
    Ok(page(&format!("Holdfast: job {}", job.name()), &body))
}

fn head(job: &Job, image: Option<&Image>) -> String {
    let command = Recipe::read(job).map(|recipe| recipe.command).unwrap_or_default();
    let command: Vec<String> = command.iter().map(Name::to_string).collect();
    let mut out = format!("<h1>Job {}</h1>\n", escape(job.name()));
    out.push_str(&format!("<p><code>{}</code></p>\n", escape(&command.join(" "))));
    if let Some(record) = image.and_then(|image| crate::names::record_of(image).ok()) {
        let host = &record.host;
        let line = format!(
            "{} in {}, on {}, Linux {}, {}",
            record.exe.path, record.cwd, host.hostname, host.kernel_release, host.cpu
        );
        out.push_str(&format!("<p>{}</p>\n", escape(&line)));
    }
    out
}

/// The middle of some numbers, and the largest.
fn middle_and_most(mut values: Vec<u64>) -> (u64, u64) {
    values.sort_unstable();
    let middle = values.get(values.len() / 2).copied().unwrap_or(0);
    (middle, values.last().copied().unwrap_or(0))
}

fn summary(rows: &[Row]) -> String {
    let good = || rows.iter().filter(|row| row.info.broken.is_none());
    let (middle, most) = middle_and_most(good().map(|row| row.info.stop_ns).collect());
    let newest = good().next_back();
    let stored: u64 = rows.iter().map(|row| row.info.bytes).sum();
    let times = || good().map(|row| row.info.created_ns);
    let range = times().max().unwrap_or(0).saturating_sub(times().min().unwrap_or(0));
    let stopped: u64 = good().skip(1).map(|row| row.info.stop_ns).sum();
    let mut shown = vec![
        ("images", rows.len().to_string()),
        ("age of the newest", newest.map_or_else(|| "-".into(), |row| age(row.info.created_ns))),
        ("stop time, median", short_time(middle)),
        ("stop time, longest", short_time(most)),
        ("memory of the program", size(newest.map_or(0, |row| row.info.program_bytes))),
        ("in the store", size(stored)),
    ];
    if range > 0 {
        let share = stopped as f64 * 100.0 / range as f64;
        shown.push(("stopped, of the time from the first image to the last", format!("{share:.3} %")));
    }
    let epochs = || rows.iter().filter_map(|row| row.figures.as_ref().map(|(.., epoch)| epoch));
    let held = epochs().map(|epoch| epoch.held_ns).fold(0, u64::saturating_add);
    let copies = epochs().map(|epoch| epoch.copies_peak).max().unwrap_or(0);
    shown.push(("writers held for copies, in all", short_time(held)));
    shown.push(("most memory of copies", size(copies.saturating_mul(PAGE_SIZE))));
    tiles(&shown)
}

/// Where a stop's time went, milliseconds.
fn stop_values(stop: &StopBreakdown) -> Vec<f64> {
    let sum = |parts: &[u64]| parts.iter().copied().fold(0, u64::saturating_add);
    let (before, after) = stop.cuda.map_or((0, 0), |cuda| {
        let before = [cuda.leave_ns, cuda.lock_ns, cuda.checkpoint_ns];
        (sum(&before), sum(&[cuda.restore_ns, cuda.unlock_ns, cuda.return_ns]))
    });
    let state = sum(&[stop.threads_ns, stop.inject_ns, stop.maps_ns, stop.files_ns]);
    let mut parts =
        vec![stop.stop_ns, state, stop.track_ns, stop.copy_ns, stop.clone_ns, stop.resume_ns, before, after];
    parts.push(stop.total_ns.saturating_sub(sum(&parts)));
    parts.into_iter().map(|ns| ns as f64 / 1e6).collect()
}

/// Axes end at round numbers of this unit.
const MIB: f64 = 1_048_576.0;

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB
}

fn charts(rows: &[Row]) -> String {
    let columns = |values: &dyn Fn(&Row) -> Vec<f64>| -> Vec<Column> {
        rows.iter().map(|row| Column { name: row.info.epoch.to_string(), values: values(row) }).collect()
    };
    let stops = columns(&|row| row.figures.as_ref().map_or_else(Vec::new, |(stop, ..)| stop_values(stop)));
    let sizes = columns(&|row| vec![mib(row.info.bytes)]);
    let dirty = columns(&|row| {
        let pages = row.figures.as_ref().map(|(.., epoch)| (epoch.pages_dirty, epoch.pages_tracked));
        pages.map_or_else(Vec::new, |(dirty, all)| {
            [dirty, all.saturating_sub(dirty)].map(|pages| mib(pages.saturating_mul(PAGE_SIZE))).to_vec()
        })
    });
    let writes = columns(&|row| {
        row.figures.as_ref().map_or_else(Vec::new, |(.., epoch)| {
            let counts = &epoch.flush;
            [counts.wait, counts.cow, counts.avoided, counts.after].map(|pages| pages as f64).to_vec()
        })
    });
    let milliseconds = |value: f64| format!("{value:.2} ms");
    let bytes = |value: f64| size((value * MIB) as u64);
    let pages = |value: f64| format!("{value:.0}");
    let mut out = section(
        "Stop time",
        "The stop time of each image, by cause.",
        &stacked("stop time by image", &STOP_PARTS, &stops, milliseconds),
    );
    out += &section(
        "Size",
        "The bytes that each image added to the store.",
        &stacked("size by image", &["stored"], &sizes, bytes),
    );
    out += &section(
        "Memory written",
        "Memory that the program had written since the image before, of all that is tracked.",
        &stacked("memory written by image", &["written", "not written"], &dirty, bytes),
    );
    out += &section(
        "First writes to pages during the flush",
        "While an image was written the program wrote to pages of it: it waited, a copy was made first, or the page \
         was stored already.",
        &stacked("first writes by image", &WRITES, &writes, pages),
    );
    out + &time(rows)
}

/// When each was committed, and how long its flush took.
fn time(rows: &[Row]) -> String {
    let bar = |row: &Row| {
        let flush_ns = row.figures.as_ref().map_or(0, |(_, flush, _)| flush.flush_ns);
        let info = &row.info;
        let (time, took) = (utc(info.created_ns), short_time(flush_ns));
        let start = info.created_ns.saturating_sub(flush_ns) as f64 / 1e9;
        Bar { name: format!("image {}, {time}, flush {took}", info.epoch), start, len: flush_ns as f64 / 1e9 }
    };
    let bars: Vec<Bar> = rows.iter().map(bar).collect();
    let times = || rows.iter().map(|row| row.info.created_ns);
    let ends = (utc(times().min().unwrap_or(0)), utc(times().max().unwrap_or(0)));
    section(
        "When",
        "Each bar is an image, from its cut to its commit.",
        &timeline("images by time", &bars, (&ends.0, &ends.1)),
    )
}

fn images(rows: &[Row]) -> String {
    let head = [
        "IMAGE",
        "PARENT",
        "COMMITTED",
        "STOP TIME",
        "FLUSH",
        "MEMORY",
        "WRITTEN",
        "ADDED",
        "TIERS",
        "REMARK",
    ];
    let cells = |row: &Row| {
        let info = &row.info;
        let flush = row.figures.as_ref().map(|(_, flush, _)| short_time(flush.flush_ns));
        let dirty = row.figures.as_ref().map(|(.., epoch)| size(epoch.pages_dirty.saturating_mul(PAGE_SIZE)));
        vec![
            info.epoch.to_string(),
            info.parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string()),
            utc(info.created_ns),
            short_time(info.stop_ns),
            flush.unwrap_or_else(|| "-".to_owned()),
            size(info.program_bytes),
            dirty.unwrap_or_else(|| "-".to_owned()),
            size(info.bytes),
            row.tiers.join(", "),
            report::remark(info),
        ]
    };
    table(&head, &rows.iter().map(cells).collect::<Vec<_>>(), &[0, 1, 3, 4, 5, 6, 7])
}

/// What each took of the program and of the store.
fn costs(rows: &[Row]) -> String {
    const HEAD: [&str; 11] = [
        "IMAGE",
        "STOP TIME",
        "HELD",
        "WAIT",
        "COW",
        "AVOIDED",
        "AFTER",
        "COPIES",
        "READ",
        "COMPRESSED",
        "WRITTEN TO DISK",
    ];
    let cells = |row: &Row| {
        let mut cells = vec![row.info.epoch.to_string()];
        let Some((stop, flush, epoch)) = &row.figures else {
            cells.resize(HEAD.len(), "-".to_owned());
            return cells;
        };
        let counts = &epoch.flush;
        cells.extend([short_time(stop.total_ns), short_time(epoch.held_ns)]);
        cells.extend([counts.wait, counts.cow, counts.avoided, counts.after].map(|pages| pages.to_string()));
        cells
            .extend([epoch.copies_peak, flush.pages_read].map(|pages| size(pages.saturating_mul(PAGE_SIZE))));
        let (from, to) = (size(flush.bytes_compressed_from), size(flush.bytes_compressed_to));
        cells.extend([format!("{from} to {to}"), size(flush.bytes_stored)]);
        cells
    };
    let right: Vec<usize> = (0..HEAD.len()).collect();
    table(&HEAD, &rows.iter().map(cells).collect::<Vec<_>>(), &right)
}

fn after_failures(all: &[Restarted]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let row = |one: &Restarted| vec![utc(one.at_ns), one.image.to_string(), one.why.clone()];
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let text =
        "What run --restart-on-failure has restarted since the job was run, from which image, and why.";
    section("Restarts after failures", text, &table(&["at", "image", "why"], &rows, &[1]))
}

fn lower_tiers(record: &TiersRecord) -> String {
    if record.tiers.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = record
        .tiers
        .iter()
        .map(|tier| {
            let newest = tier.versions.last().map_or_else(|| "-".to_owned(), ToString::to_string);
            let (count, waiting) = (tier.versions.len().to_string(), tier.waiting.len().to_string());
            vec![tier.tier.clone(), count, newest, waiting, tier.error.clone().unwrap_or_default()]
        })
        .collect();
    let cells = table(&["TIER", "IMAGES", "NEWEST", "WAITING", "ERROR"], &rows, &[1, 2, 3]);
    section("Lower tiers", "The state that the job's agent has recorded last.", &cells)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::Epoch;
    use holdfast_image::cuda::CudaStop;

    fn row(epoch: u64, stop_ns: u64, broken: Option<&str>) -> Row {
        let info = ImageInfo {
            epoch: Epoch(epoch),
            created_ns: 1_795_702_445_872_612_281 + epoch * 10_000_000_000,
            run_ns: 0,
            bytes: 4096 * epoch,
            total_bytes: 4096,
            program_bytes: 1 << 20,
            stop_ns,
            parent: (epoch > 1).then(|| Epoch(epoch - 1)),
            unsaved: Vec::new(),
            broken: broken.map(str::to_owned),
            complete: true,
        };
        let cuda = Some(CudaStop { lock_ns: 1_000_000, restore_ns: 2_000_000, ..CudaStop::default() });
        let stop = StopBreakdown { total_ns: stop_ns, clone_ns: stop_ns, cuda, ..StopBreakdown::default() };
        let figures = broken.is_none().then(|| (stop, FlushFigures::default(), EpochFigures::default()));
        Row { info, figures, tiers: vec!["local".to_owned()] }
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        assert_eq!(utc(1_795_702_445_872_612_281), "2026-11-26T14:14:05Z");
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn a_damaged_image_says_why_and_is_in_no_average() {
        let rows = [row(1, 3_000_000, None), row(2, 5_000_000, None), row(3, 900_000_000, Some("<damaged>"))];
        let shown = summary(&rows);
        assert!(shown.contains("<b>5.00 ms</b><span>stop time, longest"), "{shown}");
        let shown = images(&rows);
        assert!(shown.contains("&lt;damaged&gt;") && shown.contains("2026-11-26T14:14:35Z"), "{shown}");
        let shown = costs(&rows);
        assert!(shown.contains("5.00 ms") && shown.matches("<tr>").count() == 4, "{shown}");
        let shown = charts(&rows);
        assert!(shown.contains("CUDA restore: 2.00 ms") && shown.matches("</svg>").count() == 5, "{shown}");
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let folder = std::env::temp_dir().join(format!("holdfast-report-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let file = folder.join("report.html");
        write(&file, "one").unwrap();
        write(&file, "two").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert!(write(&folder.join("none/report.html"), "x").is_err());
        assert!(write(&folder, "x").is_err(), "a folder is not replaced");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_dir_all(&folder).unwrap();
    }
}
