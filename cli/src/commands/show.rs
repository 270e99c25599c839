//! `holdfast show`: what an image holds, what its epoch changed, and where its stop time went.

use super::gang_list::{self, PartOf};
use super::show_objects;
use crate::exit::Failure;
use crate::last_restart::LastRestart;
use crate::names::ImageName;
use crate::report::{self, short_time, size};
use crate::tiers;
use holdfast_image::PAGE_SIZE;
use holdfast_image::bytes::Name;
use holdfast_image::cuda::{CudaDevice, CudaRecord, CudaStop, version};
use holdfast_image::manifest::{AccessCounts, EpochFigures, FlushFigures, StopBreakdown};
use holdfast_image::record::{
    Backing, FileTable, IpcContent, IpcObject, NamelessKind, Object, ProcessRecord, SocketState,
    SysvShmRecord,
};
use holdfast_tiers::stack::TiersRecord;
use holdfast_tiers::{FramesOf, Image};
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
    let tiers = tiers::names_of(&job, &TiersRecord::read(&job), image.epoch());
    if show_objects::is_of_objects(&image) {
        return show_objects::run(&job, &image, &tiers, json);
    }
    let record = crate::names::record_of(&image)?;
    let last_restart = LastRestart::read(&job);
    // The image is there, whatever the gang's folder says.
    let gang = gang_list::part_of(&store, &job, image.epoch()).unwrap_or_else(|failure| {
        report::warn(&format!("the gang of job {}: {failure}", job.name()));
        None
    });
    if json {
        return report::print_json(
            "image",
            serde_json::json!({
                "job": job.name(),
                "image": image.info(),
                "created": report::utc(image.info().created_ns),
                "engine": image.engine(),
                "command": image.command(),
                "protected_only": image.protected_only(),
                "stop": image.stop(),
                "flush": image.figures(),
                "flush_bytes_per_s": flush_rate(image.figures()),
                "codecs": image.frames_by_codec().iter().map(codec_json).collect::<Vec<_>>(),
                "epoch": image.epoch_figures(),
                "record": record,
                "tiers": tiers,
                "gang": gang,
                "last_restart": last_restart,
            }),
        );
    }
    let mut text = text(job.name(), &image, &record, (&tiers, gang.as_ref()));
    if let Some(last) = last_restart {
        let time = short_time(last.ns);
        text.push_str(&format!(
            "\nlast restart of the job\n  image {}, {time}: {}\n",
            last.image,
            last.line()
        ));
    }
    report::print(&text)
}

fn text(
    job: &str,
    image: &Image,
    record: &ProcessRecord,
    (tiers, gang): (&[String], Option<&PartOf>),
) -> String {
    let info = image.info();
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
    if let Some(level) = record.host.baseline {
        let _ = writeln!(out, "  baseline   {level}: the instructions that the program may use");
    }
    for process in record.processes() {
        if let Some(cuda) = &process.cuda {
            let _ = writeln!(out, "  CUDA       {}", cuda_line(process.pid, cuda));
        }
    }
    let epoch = image.epoch_figures();
    let parent =
        info.parent.map_or_else(|| "none (a full image)".to_owned(), |parent| format!("image {parent}"));
    let _ = writeln!(out, "  parent     {parent}");
    let _ = writeln!(out, "  engine     {}, order {}", image.engine(), known(&epoch.order));
    let _ = writeln!(out, "  tracker    {}", known(&epoch.tracker));
    let _ =
        writeln!(out, "  size       {} of memory in {} on disk", size(info.program_bytes), size(info.bytes));
    if tiers.len() > 1 {
        let _ = writeln!(out, "  tiers      {}", tiers.join(", "));
    }
    if let Some(gang) = gang {
        let _ = writeln!(out, "  gang       {}", gang.line());
    }
    if image.protected_only() {
        let _ = writeln!(out, "  content    protected memory only");
    }
    for line in report::unsaved(&info.unsaved) {
        let _ = writeln!(out, "  {line}");
    }
    let _ = writeln!(out, "\nstop time");
    out.push_str(&stop_table(image.stop()));
    if let Some(cuda) = image.stop().cuda {
        let _ = writeln!(out, "\ndevice memory");
        out.push_str(&device_table(&cuda));
    }
    let _ = writeln!(out, "\npages");
    out.push_str(&pages_table(epoch, image.figures()));
    let _ = writeln!(out, "\nflush");
    out.push_str(&flush_table(image.figures()));
    out.push_str(&copies_table(epoch));
    let _ = writeln!(out, "\nframes");
    out.push_str(&codecs_table(&image.frames_by_codec()));
    let _ = writeln!(out, "\nfirst writes after a cut");
    out.push_str(&writes_table(epoch));
    if !record.others.is_empty() || !record.zombies.is_empty() {
        let _ = writeln!(out, "\nprocesses");
        out.push_str(&processes_table(record));
        let _ = writeln!(out, "\nof process {}:", record.pid);
    }
    let _ = writeln!(out, "\nthreads");
    let threads: Vec<Vec<String>> =
        record.threads.iter().map(|t| vec![format!("  {}", t.tid), t.comm.to_string()]).collect();
    out.push_str(&report::table(&["  TID", "NAME"], &threads, &[]));
    let _ = writeln!(out, "\nmemory");
    out.push_str(&regions_table(record));
    let _ = writeln!(out, "\ndescriptors");
    out.push_str(&descriptors_table(record));
    let objects = system_v(&record.files);
    if !objects.is_empty() {
        let _ = writeln!(out, "\nSystem V");
        out.push_str(&report::table(&["  OBJECT", "CONTENT"], &objects, &[]));
    }
    out
}

/// Shared memory, semaphores and queues, each with what is in it.
fn system_v(files: &FileTable) -> Vec<Vec<String>> {
    let segment = |segment: &SysvShmRecord| {
        let gone = if segment.removed { ", removed" } else { "" };
        vec![format!("  shared memory {}", segment.id), size(segment.size) + gone]
    };
    let object = |object: &IpcObject| {
        let content = match &object.content {
            IpcContent::Semaphores(values) => format!("{} semaphores", values.len()),
            IpcContent::Messages { messages, .. } => format!("{} messages", messages.len()),
        };
        vec![format!("  {}", object.name().trim_start_matches("System V ")), content]
    };
    files.segments.iter().map(segment).chain(files.ipc.iter().map(object)).collect()
}

/// All processes of the job, those that have ended too.
fn processes_table(record: &ProcessRecord) -> String {
    let mut rows = Vec::new();
    for process in record.processes() {
        let name = process.threads.first().map(|thread| thread.comm.to_string()).unwrap_or_default();
        let ids = [process.pid, process.ppid, process.pgid, process.sid].map(|id| id.to_string());
        let [pid, ppid, group, session] = ids;
        let threads = process.threads.len().to_string();
        rows.push(vec![format!("  {pid}"), ppid, group, session, threads, name]);
        for zombie in &process.zombies {
            let [ppid, group, session] = [process.pid, zombie.pgid, zombie.sid].map(|id| id.to_string());
            let name = format!("{} (ended)", zombie.comm);
            rows.push(vec![format!("  {}", zombie.pid), ppid, group, session, "0".into(), name]);
        }
    }
    report::table(&["  PID", "PARENT", "GROUP", "SESSION", "THREADS", "NAME"], &rows, &[0, 1, 2, 3, 4])
}

/// What the driver has done for a process.
fn cuda_line(pid: i32, cuda: &CudaRecord) -> String {
    let release = if cuda.release.is_empty() { String::new() } else { format!(" ({})", cuda.release) };
    let device = |device: &CudaDevice| match device.name.as_str() {
        "" => device.uuid.clone(),
        name => format!("{name} {}", device.uuid),
    };
    let devices: Vec<String> = cuda.devices.iter().map(device).collect();
    let devices = if devices.is_empty() { String::new() } else { format!(", of {}", devices.join(", ")) };
    let (state, version) = (&cuda.state, version(cuda.api_version));
    format!("process {pid}: {state} by the driver for CUDA {version}{release}{devices}")
}

/// Device memory by owner, and where the time went that calls of CUDA waited for it.
fn device_table(cuda: &CudaStop) -> String {
    let milliseconds = |parts: &[(&str, u64)]| {
        let part = |(name, ns): &(&str, u64)| format!("{name} {:.3} ms", *ns as f64 / 1e6);
        parts.iter().map(part).collect::<Vec<_>>().join(", ")
    };
    let away = [
        ("drain", cuda.drain_ns),
        ("hash", cuda.hash_ns),
        ("gather", cuda.copy_ns),
        ("unmap", cuda.unmap_ns),
    ];
    let back = [("map", cuda.map_ns), ("fill", cuda.fill_ns), ("compare", cuda.check_ns)];
    let control = cuda.lock_ns + cuda.checkpoint_ns + cuda.restore_ns + cuda.unlock_ns;
    let owned = cuda.data_bytes > 0;
    let cached = (cuda.cached_bytes > 0).then(|| ("cached", size(cuda.cached_bytes)));
    let mut rows = vec![("allocated", size(cuda.data_bytes)), ("of the driver", size(cuda.driver_bytes))];
    if owned {
        rows.push(("hashed", size(cuda.hashed_bytes)));
        rows.push(("dirty", format!("{}, {} became zero", size(cuda.dirty_bytes), size(cuda.zero_bytes))));
        rows.extend(cached);
        if cuda.discarded_bytes > 0 {
            rows.push(("not stored", format!("{}: zero after a restart", size(cuda.discarded_bytes))));
        }
        rows.push(("away", milliseconds(&away)));
        rows.push(("back", milliseconds(&back)));
    }
    rows.push(("calls waited", milliseconds(&[("control", control), ("host", cuda.host_ns)])));
    lines(&rows)
}

fn stop_table(stop: &StopBreakdown) -> String {
    let before = stop.cuda.map(|cuda| {
        [
            ("device memory away", cuda.leave_ns),
            ("CUDA lock", cuda.lock_ns),
            ("CUDA checkpoint", cuda.checkpoint_ns),
        ]
    });
    let after = stop.cuda.map(|cuda| {
        [
            ("CUDA restore", cuda.restore_ns),
            ("CUDA unlock", cuda.unlock_ns),
            ("device memory back", cuda.return_ns),
        ]
    });
    let owned = stop.cuda.is_some_and(|cuda| cuda.data_bytes > 0);
    let is_known = |(name, _): &(&str, u64)| owned || !name.starts_with("device memory");
    let (before, after) = (before.into_iter().flatten(), after.into_iter().flatten());
    let host = [
        ("stop all threads", stop.stop_ns),
        ("registers and signals", stop.threads_ns),
        ("injected queries", stop.inject_ns),
        ("mappings", stop.maps_ns),
        ("files", stop.files_ns),
        ("tracking", stop.track_ns),
        ("copied memory", stop.copy_ns),
        ("clone", stop.clone_ns),
        ("resume", stop.resume_ns),
    ];
    let parts = before.chain(host).chain(after).filter(is_known);
    let parts = parts.chain([("total", stop.total_ns)]);
    let row = |(name, ns): (&str, u64)| {
        let share = if stop.total_ns == 0 { 0.0 } else { ns as f64 * 100.0 / stop.total_ns as f64 };
        vec![format!("  {name}"), format!("{:.3}", ns as f64 / 1e6), format!("{share:.0}")]
    };
    report::table(&["  PART", "MS", "%"], &parts.map(row).collect::<Vec<_>>(), &[1, 2])
}

/// What an image does not say was not known to the version that wrote it.
fn known(word: &str) -> &str {
    if word.is_empty() { "unknown" } else { word }
}

fn pages(count: u64) -> String {
    format!("{count} ({})", size(count.saturating_mul(PAGE_SIZE)))
}

fn lines(rows: &[(&str, String)]) -> String {
    rows.iter().fold(String::new(), |mut out, (name, value)| {
        let _ = writeln!(out, "  {name:<16} {value}");
        out
    })
}

fn pages_table(epoch: &EpochFigures, flush: &FlushFigures) -> String {
    lines(&[
        ("tracked", pages(epoch.pages_tracked)),
        ("dirty", pages(epoch.pages_dirty)),
        ("stored", pages(flush.pages_stored)),
        ("unchanged", pages(flush.pages_unchanged)),
        ("shared", pages(flush.pages_deduplicated)),
        ("all zero", pages(flush.pages_zero)),
        ("from parent", pages(flush.pages_parent)),
        ("pre-copied", format!("{}, {} of them for good", pages(epoch.pages_precopy), flush.pages_precopied)),
    ])
}

/// Bytes read in a second of flush; 0 where nothing was flushed.
fn flush_rate(flush: &FlushFigures) -> u64 {
    let bytes = u128::from(flush.pages_read) * u128::from(PAGE_SIZE) * 1_000_000_000;
    bytes.checked_div(u128::from(flush.flush_ns)).map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
}

fn compressed(flush: &FlushFigures) -> String {
    let all = format!("{} to {}", size(flush.bytes_compressed_from), size(flush.bytes_compressed_to));
    match flush.bytes_compressed_on_device {
        0 => all,
        bytes => format!("{all}, {} of it on the device", size(bytes)),
    }
}

fn flush_table(flush: &FlushFigures) -> String {
    lines(&[
        ("time to commit", short_time(flush.flush_ns)),
        ("pages read", pages(flush.pages_read)),
        ("rate", format!("{:.0} MB/s", flush_rate(flush) as f64 / 1e6)),
        ("compressed", compressed(flush)),
        ("on disk", size(flush.bytes_stored)),
    ])
}

fn codec_json(of: &FramesOf) -> serde_json::Value {
    serde_json::json!({
        "codec": of.codec.name(), "frames": of.frames, "bytes": of.bytes, "stored": of.stored,
    })
}

/// How the pages of the image are stored, whichever image they were stored for.
fn codecs_table(codecs: &[FramesOf]) -> String {
    let row = |of: &FramesOf| {
        vec![format!("  {}", of.codec.name()), of.frames.to_string(), size(of.bytes), size(of.stored)]
    };
    let rows: Vec<Vec<String>> = codecs.iter().map(row).collect();
    report::table(&["  CODEC", "FRAMES", "OF", "STORED"], &rows, &[1, 2, 3])
}

fn copies_table(epoch: &EpochFigures) -> String {
    let limit = match epoch.copies_limit {
        0 => "no bound".to_owned(),
        limit => format!("of {} allowed", pages(limit)),
    };
    let held = match epoch.holds {
        0 => "never".to_owned(),
        holds => format!("{}, {holds} times", short_time(epoch.held_ns)),
    };
    lines(&[("most copies", format!("{}, {limit}", pages(epoch.copies_peak))), ("program held", held)])
}

fn writes_table(epoch: &EpochFigures) -> String {
    let row = |name: &str, counts: &AccessCounts| {
        let AccessCounts { wait, cow, avoided, after, untouched } = *counts;
        let numbers = [wait, cow, avoided, after, untouched].map(|count| count.to_string());
        std::iter::once(format!("  {name}")).chain(numbers).collect::<Vec<_>>()
    };
    let head = ["  PAGES", "WAIT", "COW", "AVOIDED", "AFTER", "UNTOUCHED"];
    let rows = [row("in this flush", &epoch.flush), row("in the epoch before", &epoch.ended)];
    let period = match epoch.period {
        0 => "not known".to_owned(),
        1 => "every epoch is like the last".to_owned(),
        period => format!("every epoch is like the one {period} before"),
    };
    report::table(&head, &rows, &[1, 2, 3, 4, 5]) + &lines(&[("period", period)])
}

fn regions_table(record: &ProcessRecord) -> String {
    let mut kinds: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for region in &record.regions {
        let kind = match region.backing {
            Backing::Anonymous => "anonymous",
            Backing::PrivateFile { .. } => "private file",
            Backing::SharedFile { .. } => "shared file",
            Backing::Nameless { .. } => "memfd, deleted file",
            Backing::SharedAnonymous { .. } => "shared anonymous",
            Backing::SystemV { .. } => "System V shared",
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
            Some(vec![format!("  {}", entry.fd), object(&description.object, &record.files)])
        })
        .collect();
    report::table(&["  FD", "OBJECT"], &rows, &[])
}

fn object(object: &Object, files: &FileTable) -> String {
    match object {
        Object::Nameless { file, position } => match files.nameless.get(*file as usize) {
            Some(file) if file.kind == NamelessKind::Memfd => {
                format!("memfd {} (at {position} of {} bytes)", file.name, file.size)
            }
            Some(file) => format!("{} (at {position} of {} bytes, deleted)", file.name, file.size),
            None => "unknown file".to_owned(),
        },
        Object::Regular { path, position, size, deleted_content, .. } => {
            let gone = if deleted_content.is_some() { ", deleted" } else { "" };
            let saved = if files.content_of(object).is_some() { ", saved" } else { "" };
            format!("{path} (at {position} of {size} bytes{gone}{saved})")
        }
        Object::Inside { position } => format!("in a mount namespace (at {position})"),
        Object::Directory { path, .. } | Object::Device { path } => path.to_string(),
        Object::PtyMaster { pty } => format!("master of {}", terminal(*pty, files)),
        Object::PtySlave { pty } => terminal(*pty, files),
        Object::Inherited { from, was } => format!("{was}: descriptor {from} of `holdfast restart`"),
        Object::Pipe { pipe, data, path, .. } => {
            let name = path.as_ref().map_or_else(|| pipe.to_string(), ToString::to_string);
            format!("pipe {name}, {} bytes in it", data.0.len())
        }
        Object::Socket(socket) => format!("{}: {}", socket.address(), socket_state(&socket.state)),
        Object::SocketPair { pair, data, .. } => format!("socketpair {pair}, {} messages in it", data.len()),
        Object::EventFd { count, .. } => format!("eventfd, counter {count}"),
        Object::Epoll { entries } => format!("epoll, {} entries", entries.len()),
        Object::TimerFd { interval_ns, .. } => format!("timerfd, period {}", short_time(*interval_ns)),
        Object::SignalFd { mask } => format!("signalfd, mask {mask:#x}"),
        Object::Inotify { watches } => format!("inotify, {} watches", watches.len()),
        Object::Link { path, .. } => format!("{path}, the link itself"),
        Object::RemovedFolder { path, .. } => format!("{path}, removed"),
        Object::ProcessFile { pid: -1, rest, .. } => format!("{rest} in /proc, of a process that has ended"),
        Object::ProcessFile { pid, rest, .. } => format!("/proc/{pid}{rest}"),
        Object::MessageQueue { queue } => match files.queues.get(*queue as usize) {
            Some(queue) => format!("message queue {}, {} messages in it", queue.name, queue.messages.len()),
            None => "unknown message queue".to_owned(),
        },
        Object::PidFd { pid: -1, .. } => "a process that has ended".to_owned(),
        Object::PidFd { pid, .. } => format!("process {pid}"),
        Object::Own => "held by libholdfast".to_owned(),
    }
}

fn terminal(pty: u32, files: &FileTable) -> String {
    files.ptys.get(pty as usize).map_or("a terminal".to_owned(), |pty| format!("/dev/pts/{}", pty.number))
}

fn socket_state(state: &SocketState) -> String {
    match state {
        SocketState::Idle => "not connected".into(),
        SocketState::Listening { backlog } => format!("listening, {backlog} may wait"),
        SocketState::Directed { .. } => "datagrams to one destination".into(),
        SocketState::Connected { connection, data, .. } => {
            let bytes: usize = data.iter().map(|piece| piece.0.len()).sum();
            format!("connection {connection}, {bytes} bytes in it")
        }
        SocketState::Member { member, data, .. } => {
            let bytes: usize = data.iter().map(|piece| piece.0.len()).sum();
            format!("connection to member {member} of the gang, {bytes} bytes in it")
        }
        SocketState::Pending { .. } => "connection that waits to be accepted".into(),
        SocketState::Lost => "a connection that is lost at a restart".into(),
        SocketState::Over { .. } => "a connection that both ends have shut".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::cuda::CudaStop;

    #[test]
    fn an_epoch_is_told_in_full() {
        let epoch = EpochFigures {
            pages_tracked: 1000,
            pages_dirty: 100,
            pages_precopy: 60,
            flush: AccessCounts { wait: 1, cow: 2, avoided: 3, after: 0, untouched: 4 },
            ended: AccessCounts { wait: 11, cow: 12, avoided: 13, after: 14, untouched: 15 },
            copies_peak: 8,
            copies_limit: 16,
            held_ns: 2_000_000,
            holds: 3,
            period: 2,
            ..EpochFigures::default()
        };
        let flush =
            FlushFigures { flush_ns: 4096, pages_read: 1, pages_precopied: 50, ..FlushFigures::default() };
        let text = pages_table(&epoch, &flush) + &copies_table(&epoch) + &flush_table(&flush);
        for part in [
            "tracked          1000 (3.9 MiB)",
            "pre-copied       60 (240.0 KiB), 50 of them for good",
            "most copies      8 (32.0 KiB), of 16 (64.0 KiB) allowed",
            "program held     2.00 ms, 3 times",
            "rate             1000 MB/s",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert_eq!(
            writes_table(&epoch),
            "  PAGES                WAIT  COW  AVOIDED  AFTER  UNTOUCHED\n  \
             in this flush           1    2        3      0          4\n  \
             in the epoch before    11   12       13     14         15\n  \
             period           every epoch is like the one 2 before\n"
        );
    }

    #[test]
    fn what_the_cuda_driver_took_is_a_part_of_the_stop() {
        let cuda = CudaStop { lock_ns: 1_000_000, restore_ns: 2_000_000, ..CudaStop::default() };
        let stop = StopBreakdown { total_ns: 4_000_000, cuda: Some(cuda), ..StopBreakdown::default() };
        let text = stop_table(&stop);
        assert!(
            text.contains("CUDA lock              1.000   25") && text.contains("CUDA restore"),
            "{text}"
        );
        assert!(!stop_table(&StopBreakdown::default()).contains("CUDA"));
        let device = CudaDevice { uuid: "GPU-1".into(), name: "H200".into() };
        let record = CudaRecord {
            state: CudaRecord::STATE.into(),
            api_version: 13000,
            release: "580.159".into(),
            devices: vec![device],
            ..CudaRecord::default()
        };
        let line = "process 7: checkpointed by the driver for CUDA 13.0 (580.159), of H200 GPU-1";
        assert_eq!(cuda_line(7, &record), line);
    }

    #[test]
    fn nothing_known_is_no_nonsense() {
        let (epoch, flush) = (EpochFigures::default(), FlushFigures::default());
        assert_eq!(flush_rate(&flush), 0);
        assert!(copies_table(&epoch).contains("no bound"));
        assert!(copies_table(&epoch).contains("never"));
        assert_eq!(known(&epoch.tracker), "unknown");
    }
}
