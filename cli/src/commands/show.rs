//! `holdfast show`: what an image holds, and where its stop time went.

use crate::exit::Failure;
use crate::names::ImageName;
use crate::report::{self, short_time, size};
use holdfast_image::bytes::Name;
use holdfast_image::manifest::{FlushFigures, StopBreakdown};
use holdfast_image::record::{Backing, Object, ProcessRecord};
use holdfast_tiers::Image;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Shows one image.
///
/// # Errors
/// There is no such image, or it is damaged.
pub fn run(name: &ImageName, json: bool, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, &name.job)?;
    let image = crate::names::open_image(&job, name.epoch)?;
    if json {
        return report::print_json(&serde_json::json!({
            "job": job.name(),
            "image": image.info(),
            "engine": image.engine(),
            "command": image.command(),
            "protected_only": image.protected_only(),
            "stop": image.stop(),
            "flush": image.figures(),
            "record": image.record(),
        }));
    }
    report::print(&text(job.name(), &image))
}

fn text(job: &str, image: &Image) -> String {
    let (info, record) = (image.info(), image.record());
    let command: Vec<String> = image.command().iter().map(Name::to_string).collect();
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "image {} of job {job}, {} ago", info.epoch, report::age(info.created_ns));
    let _ = writeln!(out, "  command    {}", command.join(" "));
    let _ = writeln!(out, "  program    {} (pid {}) in {}", record.exe.path, record.pid, record.cwd);
    let _ = writeln!(
        out,
        "  host       {}, Linux {}, {}",
        record.host.hostname, record.host.kernel_release, record.host.cpu
    );
    let _ = writeln!(out, "  engine     {}", image.engine());
    let _ =
        writeln!(out, "  size       {} of memory in {} on disk", size(info.program_bytes), size(info.bytes));
    if image.protected_only() {
        let _ = writeln!(out, "  content    protected memory only");
    }
    let _ = writeln!(out, "\nstop time");
    out.push_str(&stop_table(image.stop()));
    let _ = writeln!(out, "\nflush");
    out.push_str(&flush_table(image.figures()));
    let _ = writeln!(out, "\nthreads");
    let threads: Vec<Vec<String>> =
        record.threads.iter().map(|t| vec![format!("  {}", t.tid), t.comm.to_string()]).collect();
    out.push_str(&report::table(&["  TID", "NAME"], &threads, &[]));
    let _ = writeln!(out, "\nmemory");
    out.push_str(&regions_table(record));
    let _ = writeln!(out, "\ndescriptors");
    out.push_str(&descriptors_table(record));
    out
}

fn stop_table(stop: &StopBreakdown) -> String {
    let parts = [
        ("stop all threads", stop.stop_ns),
        ("registers and signals", stop.threads_ns),
        ("injected queries", stop.inject_ns),
        ("mappings", stop.maps_ns),
        ("files", stop.files_ns),
        ("copied memory", stop.copy_ns),
        ("clone", stop.clone_ns),
        ("resume", stop.resume_ns),
        ("total", stop.total_ns),
    ];
    let row = |(name, ns): (&str, u64)| {
        let share = if stop.total_ns == 0 { 0.0 } else { ns as f64 * 100.0 / stop.total_ns as f64 };
        vec![format!("  {name}"), format!("{:.3}", ns as f64 / 1e6), format!("{share:.0}")]
    };
    report::table(&["  PART", "MS", "%"], &parts.map(row), &[1, 2])
}

fn flush_table(flush: &FlushFigures) -> String {
    let pages = |count: u64| format!("{count} ({})", size(count.saturating_mul(holdfast_image::PAGE_SIZE)));
    let rows = [
        ("time to commit", short_time(flush.flush_ns)),
        ("pages read", pages(flush.pages_read)),
        ("all zero", pages(flush.pages_zero)),
        ("stored", pages(flush.pages_stored)),
        (
            "compressed",
            format!("{} to {}", size(flush.bytes_compressed_from), size(flush.bytes_compressed_to)),
        ),
        ("on disk", size(flush.bytes_stored)),
    ];
    rows.iter().fold(String::new(), |mut out, (name, value)| {
        let _ = writeln!(out, "  {name:<16} {value}");
        out
    })
}

fn regions_table(record: &ProcessRecord) -> String {
    let mut kinds: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for region in &record.regions {
        let kind = match region.backing {
            Backing::Anonymous => "anonymous",
            Backing::PrivateFile { .. } => "private file",
            Backing::SharedFile { .. } => "shared file",
            Backing::SharedAnonymous { .. } => "shared anonymous",
            Backing::Kernel { .. } => "kernel",
        };
        let sum = kinds.entry(kind).or_default();
        sum.0 += 1;
        sum.1 += region.end.0.saturating_sub(region.start.0);
    }
    let rows: Vec<Vec<String>> = kinds
        .into_iter()
        .map(|(kind, (count, bytes))| vec![format!("  {kind}"), count.to_string(), size(bytes)])
        .collect();
    report::table(&["  KIND", "MAPPINGS", "ADDRESS SPACE"], &rows, &[1, 2])
}

fn descriptors_table(record: &ProcessRecord) -> String {
    let rows: Vec<Vec<String>> = record
        .files
        .descriptors
        .iter()
        .filter_map(|entry| {
            let description = record.files.descriptions.get(entry.description as usize)?;
            Some(vec![format!("  {}", entry.fd), object(&description.object)])
        })
        .collect();
    report::table(&["  FD", "OBJECT"], &rows, &[])
}

fn object(object: &Object) -> String {
    match object {
        Object::Regular { path, position, size, deleted_content, .. } => {
            let gone = if deleted_content.is_some() { ", deleted" } else { "" };
            format!("{path} (at {position} of {size} bytes{gone})")
        }
        Object::Directory { path, .. } | Object::Device { path } => path.to_string(),
        Object::Inherited { from, was } => format!("{was}: descriptor {from} of `holdfast restart`"),
        Object::Pipe { pipe, data, .. } => format!("pipe {pipe}, {} bytes in it", data.0.len()),
        Object::SocketPair { pair, data, .. } => format!("socketpair {pair}, {} messages in it", data.len()),
        Object::EventFd { count, .. } => format!("eventfd, counter {count}"),
        Object::Epoll { entries } => format!("epoll, {} entries", entries.len()),
        Object::TimerFd { interval_ns, .. } => format!("timerfd, period {}", short_time(*interval_ns)),
        Object::SignalFd { mask } => format!("signalfd, mask {mask:#x}"),
        Object::Own => "held by libholdfast".to_owned(),
    }
}
