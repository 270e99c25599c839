//! How results are printed: tables, sizes, times, JSON, progress bars.
//!
//! A closed pipe on standard output is not an error: `holdfast list | head -1` ends quietly.

use crate::exit::{Exit, Failure};
use crate::settings::SaveFiles;
use chrono::{DateTime, SecondsFormat};
use holdfast_image::control::{Step, UnderWay};
use holdfast_image::record::UnsavedFile;
use holdfast_sys::clock;
use holdfast_tiers::ImageInfo;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Prints text on standard output.
///
/// # Errors
/// Output cannot be written, other than to a closed pipe.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::system("writing to standard output", &error))
        }
        _ => Ok(()),
    }
}

/// How much is said beside what was asked for.
static VOLUME: AtomicU8 = AtomicU8::new(Volume::Usual as u8);

/// See [`VOLUME`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
enum Volume {
    /// What has failed.
    Quiet,
    /// What was done.
    Usual,
    /// And how.
    Verbose,
}

/// `-q`, `-v`. Called once, before anything is said.
pub fn set_volume(quiet: bool, verbose: bool) {
    let volume = match (quiet, verbose) {
        (true, _) => Volume::Quiet,
        (_, true) => Volume::Verbose,
        _ => Volume::Usual,
    };
    VOLUME.store(volume as u8, Ordering::Relaxed);
}

fn is_said(volume: Volume) -> bool {
    VOLUME.load(Ordering::Relaxed) >= volume as u8
}

/// Prints bytes on standard output. `false`: its reader has seen enough.
///
/// # Errors
/// As [`print`].
pub fn print_bytes(bytes: &[u8]) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::system("writing to standard output", &error)),
    }
}

/// Prints a line on standard error, whatever the volume: something has failed, or needs the user. A failure of that
/// cannot be told.
pub fn warn(text: &str) {
    say(&[text.to_owned()]);
}

/// Lines on standard error, as one write: what others write there at the same time comes before or behind.
fn say(lines: &[String]) {
    let text: String = lines.iter().map(|line| format!("holdfast: {line}\n")).collect();
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Notes that belong together.
pub fn notes(lines: &[String]) {
    if is_said(Volume::Usual) && !lines.is_empty() {
        say(lines);
    }
}

/// The same of what was done; not with `-q`.
pub fn note(text: &str) {
    if is_said(Volume::Usual) {
        warn(text);
    }
}

/// The same of how it was done; only with `-v`.
pub fn detail(text: &str) {
    if is_said(Volume::Verbose) {
        warn(text);
    }
}

/// Prints on standard output what was done; not with `-q`.
///
/// # Errors
/// As [`print`].
pub fn result(text: &str) -> Result<(), Failure> {
    if is_said(Volume::Usual) { print(text) } else { Ok(()) }
}

/// Version of what `--json` prints: docs/json.md describes it.
const JSON_VERSION: u32 = 1;

/// Whether anything was printed as JSON: then a failure is told by the exit status alone.
static HAS_JSON: AtomicBool = AtomicBool::new(false);

/// The object of a kind with these fields.
fn versioned(kind: &str, fields: impl Serialize) -> Result<Value, Failure> {
    let failed = |error: &dyn fmt::Display| Failure::new(Exit::Internal, format!("encoding JSON: {error}"));
    let mut value = serde_json::to_value(fields).map_err(|error| failed(&error))?;
    let object = value.as_object_mut().ok_or_else(|| failed(&"it has no fields"))?;
    object.insert("version".into(), JSON_VERSION.into());
    object.insert("kind".into(), kind.into());
    HAS_JSON.store(true, Ordering::Relaxed);
    Ok(value)
}

/// Prints fields as JSON, indented.
///
/// # Errors
/// As [`print`].
pub fn print_json(kind: &str, fields: impl Serialize) -> Result<(), Failure> {
    print(&format!("{:#}\n", versioned(kind, fields)?))
}

/// The same on one line.
///
/// # Errors
/// As [`print`].
pub fn print_json_line(kind: &str, fields: impl Serialize) -> Result<(), Failure> {
    print(&format!("{}\n", versioned(kind, fields)?))
}

/// Why there is nothing else, where nothing was printed yet.
pub fn print_json_error(exit: Exit, message: &str) {
    if !HAS_JSON.load(Ordering::Relaxed) {
        // It is told on standard error, too.
        let _ = print_json("error", serde_json::json!({ "exit": exit as u8, "message": message }));
    }
}

/// A realtime stamp in nanoseconds by RFC 3339, in UTC.
pub fn utc(realtime_ns: u64) -> String {
    let time = DateTime::from_timestamp_nanos(i64::try_from(realtime_ns).unwrap_or(i64::MAX));
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Now, likewise.
pub fn utc_now() -> String {
    utc(clock::realtime_ns())
}

/// A line for each file that is not in an image, though the program may have changed it in place.
pub fn unsaved(files: &[UnsavedFile]) -> Vec<String> {
    /// More are counted.
    const LINES: usize = 20;
    const MORE: &str = "`holdfast run --save-files=SIZE` saves more";
    let line = |file: &UnsavedFile| {
        let (path, bytes) = (&file.path, size(file.bytes));
        let (what, remedy) = match &file.reason {
            Some(reason) => (format!("it cannot be read: {reason}"), "make it readable"),
            None => {
                let limit = size(SaveFiles::LIMIT);
                (format!("it has {bytes}, and all such files together more than {limit}"), MORE)
            }
        };
        format!(
            "warning: {path}: the program changes it in place, and it is not in the image: {what}; a restart finds it \
             as it is then; {remedy}"
        )
    };
    let mut lines: Vec<String> = files.iter().take(LINES).map(line).collect();
    if files.len() > LINES {
        lines.push(format!("warning: {} more files are not in the image", files.len() - LINES));
    }
    lines
}

/// What is wrong with an image, in a few words: nothing is the empty string.
pub fn remark(image: &ImageInfo) -> String {
    match (&image.broken, image.unsaved.len()) {
        (Some(broken), _) => broken.clone(),
        (None, 0) => String::new(),
        (None, 1) => "warning: a file is not saved".to_owned(),
        (None, count) => format!("warning: {count} files are not saved"),
    }
}

/// Bytes for people: `512 B`, `1.5 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "";
    for next in UNITS {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// A short time in nanoseconds for people: `0.85 ms`, `2.10 s`.
pub fn short_time(ns: u64) -> String {
    if ns < 1_000_000_000 {
        format!("{:.2} ms", ns as f64 / 1e6)
    } else {
        format!("{:.2} s", ns as f64 / 1e9)
    }
}

/// A time as `--every` takes it: `1h30m`.
pub fn interval(seconds: u64) -> String {
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect()
}

/// How long ago a realtime stamp in nanoseconds was: `12s`, `3m`, `5h`, `2d`.
pub fn age(created_ns: u64) -> String {
    let seconds = (clock::realtime_ns() / 1_000_000_000).saturating_sub(created_ns / 1_000_000_000);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

/// A table with aligned columns; numbers of the columns in `right` are right-aligned.
pub fn table(head: &[&str], rows: &[Vec<String>], right: &[usize]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|cell| cell.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            let (before, after) =
                if right.contains(&column) { (pad.as_str(), "") } else { ("", pad.as_str()) };
            line.push_str(before);
            line.push_str(cell);
            line.push_str(after);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A progress bar in bytes on standard error; invisible where that is not a terminal.
pub fn progress(what: &str, total_bytes: u64) -> ProgressBar {
    let is_shown = io::stderr().is_terminal() && is_said(Volume::Usual);
    let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total_bytes), target).with_message(what.to_owned());
    set_style(&bar, IN_BYTES);
    bar
}

const IN_BYTES: &str = "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec}";
/// What has no bytes to be counted.
const WITHOUT_BYTES: &str = "{spinner} {msg}";

fn set_style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

/// What a checkpoint is doing, for people.
pub fn step(step: Step) -> &'static str {
    match step {
        Step::Precopy => "storing before the stop",
        Step::Stop => "stopping the program",
        Step::Flush => "writing",
        Step::Commit => "making durable",
    }
}

/// A checkpoint that is under way, for people.
pub fn under_way(now: &UnderWay) -> String {
    let (image, step) = (now.image, step(now.step));
    match now.total_bytes {
        0 => format!("image {image} under way: {step}"),
        total => {
            format!("image {image} under way: {step}, {} of {}", size(now.done_bytes), size(total))
        }
    }
}

/// A progress bar that appears when there is something to be told, and is gone when this is dropped.
#[derive(Default)]
pub struct Transient {
    bar: Option<ProgressBar>,
    /// What it tells of.
    what: String,
    has_bytes: bool,
}

impl Transient {
    /// So much is done; nothing is said of bytes where there are none.
    pub fn show(&mut self, what: &str, done: u64, total: u64) {
        let has_bytes = total > 0;
        if self.what != what || self.has_bytes != has_bytes {
            // A speed is one of its own.
            self.bar.take().inspect(ProgressBar::finish_and_clear);
            (self.what, self.has_bytes) = (what.to_owned(), has_bytes);
        }
        let bar = self.bar.get_or_insert_with(|| progress(what, total));
        if has_bytes {
            bar.set_length(total);
            bar.set_position(done);
        } else {
            set_style(bar, WITHOUT_BYTES);
            bar.tick();
        }
    }

    /// Whether it cannot be seen.
    pub fn is_hidden() -> bool {
        !io::stderr().is_terminal()
    }

    /// Prints something beside it.
    pub fn without(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for Transient {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_for_people() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size((1 << 20) - 1), "1.0 MiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
        assert_eq!(short_time(850_000), "0.85 ms");
        assert_eq!(short_time(2_100_000_000), "2.10 s");
        assert_eq!(age(u64::MAX), "0s");
    }

    #[test]
    fn a_checkpoint_that_is_under_way_tells_what_it_has_to_do() {
        let image = holdfast_image::Epoch(3);
        let flush = UnderWay { image, step: Step::Flush, done_bytes: 512, total_bytes: 1024 };
        assert_eq!(under_way(&flush), "image 3 under way: writing, 512 B of 1.0 KiB");
        let stop = UnderWay { image, step: Step::Stop, done_bytes: 0, total_bytes: 0 };
        assert_eq!(under_way(&stop), "image 3 under way: stopping the program");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = vec![vec!["a".to_owned(), "10".to_owned()], vec!["long".to_owned(), "5".to_owned()]];
        assert_eq!(table(&["NAME", "N"], &rows, &[1]), "NAME   N\na     10\nlong   5\n");
    }
}
