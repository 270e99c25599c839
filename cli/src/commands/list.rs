//! `holdfast list`: the jobs of the store, or the images of one; removes what dead agents left behind on the way.

use super::{gang, gang_list, restarts};
use crate::client::Agent;
use crate::exit::Failure;
use crate::file_system;
use crate::last_run::{self, How, LastRun};
use crate::pidfile;
use crate::report;
use crate::same_run;
use crate::saved;
use crate::settings::{GangPlace, Recipe, signal_name};
use crate::table::Table;
use crate::tiers;
use holdfast_image::Epoch;
use holdfast_image::bytes::Name;
use holdfast_image::control::{CopyStatus, JobStatus, UnderWay};
use holdfast_tiers::stack::{Place, TierRecord, TiersRecord};
use holdfast_tiers::{ImageInfo, Job, parse_rank};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// One job.
#[derive(Debug, Serialize)]
struct Row {
    job: String,
    /// "running"; "ending": its program has ended (or not begun); "no agent": the program runs, but cannot be
    /// checkpointed any more; as [`LastRun::state`]; "stopped": of no run anything is known. Of a rank of a set of
    /// objects "open" or "closed": whether a server has it.
    state: &'static str,
    /// The exit status of its program, if it has one.
    status: Option<u8>,
    /// The signal that has ended it, if one has.
    signal: Option<i32>,
    /// When its program was last started or restarted, and when it has ended: RFC 3339.
    started: Option<String>,
    ended: Option<String>,
    #[serde(skip)]
    last: Option<LastRun>,
    pid: Option<i32>,
    agent_pid: Option<i32>,
    command: Vec<Name>,
    /// Its place in the gang that it is a member of.
    gang: Option<GangPlace>,
    newest: Option<Epoch>,
    last_error: Option<String>,
    /// The image that was to end the program has failed.
    stop_failed: bool,
    /// So often `--restart-on-failure` has restarted it.
    restarts: usize,
    /// The checkpoint that is under way.
    under_way: Option<UnderWay>,
    images: Vec<ImageRow>,
    /// What restarts have kept of the user's files.
    saved: saved::Sum,
    /// What its folder takes of the disk, as du(1) has it.
    disk_bytes: u64,
    /// What is known of the lower tiers; the agent is asked where there is one, the tiers are not.
    tiers: Vec<TierRow>,
}

/// One image.
#[derive(Debug, Serialize)]
struct ImageRow {
    #[serde(flatten)]
    info: ImageInfo,
    /// It is of the last run: `restart` goes on from such ones.
    of_last_run: bool,
    /// RFC 3339.
    created: String,
    /// Where it is: "local", the store, and addresses of lower tiers.
    tiers: Vec<String>,
}

/// One lower tier.
#[derive(Debug, Serialize)]
struct TierRow {
    #[serde(flatten)]
    record: TierRecord,
    /// What is being copied to it.
    copying: Option<CopyStatus>,
    /// In how many milliseconds it is tried again.
    again_ms: Option<u64>,
}

/// Lists all jobs, or the images of one.
///
/// # Errors
/// Of the store; there is no such job.
pub fn run(name: Option<&str>, json: bool, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    if let Some(name) = name {
        if let Some(folder) = gang::named(&store, name)? {
            return gang_list::run(&store, &folder, json);
        }
        let row = row(&crate::names::open_job(&store, name)?)?;
        return if json { print_json(&[row]) } else { report::print(&(state_line(&row) + &images(&row))) };
    }
    let mut rows = Vec::new();
    for name in store.jobs()? {
        // A job that was pruned meanwhile is no error.
        let Ok(job) = store.job(&name) else { continue };
        let found = row(&job)?;
        // Its agent was killed, or it would be gone.
        let lock = is_nothing(&job, &found).then(|| job.lock().ok()).flatten();
        if lock.is_none_or(|_lock| last_run::leave_nothing(&job).is_err()) {
            rows.push(found);
        }
    }
    // By date, and jobs without images first: what is of interest is the end of a long list.
    rows.sort_by_cached_key(|row| {
        (row.images.iter().map(|image| image.info.created_ns).max(), row.job.clone())
    });
    if json {
        return print_json(&rows);
    }
    if rows.is_empty() {
        return report::print(&format!("no jobs in {}\n", store.root().display()));
    }
    let mut head =
        vec!["JOB", "STATE", "SINCE", "PID", "IMAGES", "NEWEST", "PARENT", "AGE", "ADDED", "SIZE", "COMMAND"];
    let mut cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let notes: Vec<String> = rows.iter().map(note).collect();
    if notes.iter().any(|note| !note.is_empty()) {
        head.push("NOTE");
        cells.iter_mut().zip(notes).for_each(|(cells, note)| cells.push(note));
    }
    let table = Table {
        below: head.last() == Some(&"NOTE"),
        head,
        rows: cells,
        right: &["SINCE", "PID", "IMAGES", "NEWEST", "PARENT", "AGE", "ADDED", "SIZE"],
        elastic: &["COMMAND"],
        optional: &["PARENT", "ADDED", "SINCE", "IMAGES", "SIZE", "AGE", "NEWEST"],
    };
    report::print(&table.shown())
}

/// Whether a job without a name of its own has ended well, without an image.
fn is_nothing(job: &Job, row: &Row) -> bool {
    row.state == "done"
        && row.images.is_empty()
        && row.saved.files == 0
        && lower(row).all(|tier| tier.record.versions.is_empty())
        && Recipe::read(job).is_ok_and(|recipe| recipe.unnamed)
}

fn print_json(rows: &[Row]) -> Result<(), Failure> {
    report::print_json("jobs", serde_json::json!({ "jobs": rows }))
}

fn row(job: &Job) -> Result<Row, Failure> {
    let lock = job.lock();
    let left = pidfile::program(job);
    if let Ok(lock) = &lock {
        job.clean(lock)?;
        if left.is_none() {
            pidfile::forget(job, lock);
        }
    }
    let running = lock.is_err() && job.is_live();
    drop(lock);
    let status = if running { Agent::connect(job).and_then(|agent| agent.status()).ok() } else { None };
    let record = TiersRecord::read(job);
    let recipe = Recipe::read(job).unwrap_or_default();
    let of_image = |info: ImageInfo| image_row(job, info, &record, &recipe);
    let images = job.images()?.into_iter().map(of_image).collect::<Vec<_>>();
    let last = LastRun::read(job);
    let is_over = !running && left.is_none();
    let ended = last.and_then(|last| last.ended).filter(|_| is_over);
    let is_of_objects = parse_rank(job.name()).is_some();
    let tiers = tier_rows(record, status.as_ref());
    Ok(Row {
        job: job.name().to_owned(),
        state: match (running, &status, left) {
            _ if is_of_objects && running => "open",
            _ if is_of_objects => "closed",
            (true, Some(status), _) if status.pid.is_none() => "ending",
            // The agent answers no more, for it is about to end as well.
            (true, None, _) if last.is_some_and(|last| last.ended.is_some()) => "ending",
            (true, ..) => "running",
            (false, _, Some(_)) => "no agent",
            (false, _, None) => last.map_or("stopped", |last| last.state()),
        },
        status: ended.and_then(|ended| if let How::Status(status) = ended.how { Some(status) } else { None }),
        signal: ended.and_then(|ended| if let How::Signal(signal) = ended.how { Some(signal) } else { None }),
        started: last.map(|last| report::utc(last.started_ns)),
        ended: ended.map(|ended| report::utc(ended.at_ns)),
        stop_failed: last.is_some_and(|last| last.stop_failed),
        restarts: restarts::of(job).len(),
        last,
        pid: if running { status.as_ref().and_then(|status| status.pid) } else { left },
        agent_pid: status.as_ref().map(|status| status.agent_pid),
        gang: recipe.settings.gang,
        command: recipe.command,
        newest: newest(&images).map(|image| image.epoch),
        under_way: status.as_ref().and_then(|status| status.under_way),
        last_error: status.and_then(|status| status.last_error),
        images,
        saved: saved::Sum::of(&saved::all(job)),
        disk_bytes: file_system::on_disk(job.dir()),
        tiers,
    })
}

fn image_row(job: &Job, info: ImageInfo, record: &TiersRecord, recipe: &Recipe) -> ImageRow {
    let tiers = tiers::names_of(job, record, info.epoch);
    let of_last_run = same_run::is_of(&info, recipe);
    ImageRow { created: report::utc(info.created_ns), of_last_run, info, tiers }
}

/// The image that a restart takes.
fn newest(images: &[ImageRow]) -> Option<&ImageInfo> {
    let is_good = |image: &&ImageRow| image.of_last_run && image.info.broken.is_none();
    images.iter().rev().find(is_good).map(|image| &image.info)
}

/// The state in one word, and what it ended with.
fn state(row: &Row) -> String {
    match (row.status, row.signal) {
        (Some(status), _) if status != 0 => format!("{} ({status})", row.state),
        (_, Some(signal)) => format!("{} ({})", row.state, signal_name(signal)),
        _ => row.state.to_owned(),
    }
}

/// Since when it has been so.
fn since_ns(row: &Row) -> Option<u64> {
    match (row.state, row.last?) {
        ("running" | "no agent", last) => Some(last.started_ns),
        (_, last) => last.ended.map(|ended| ended.at_ns),
    }
}

/// What is known of the job's last run.
fn state_line(row: &Row) -> String {
    let Some(last) = row.last else { return format!("job {}: {}\n", row.job, row.state) };
    let from = last.image.map_or_else(String::new, |epoch| format!(" from image {epoch}"));
    let begun = format!("started{from} at {}", report::utc(last.started_ns));
    let end = match row.state {
        "running" | "ending" | "no agent" => String::new(),
        _ => format!(", {}", last.end_text()),
    };
    format!("job {}: {}, {begun}{end}\n", row.job, row.state)
}

/// What the agent says is newer than what was written down.
fn tier_rows(record: TiersRecord, status: Option<&JobStatus>) -> Vec<TierRow> {
    let live = |tier: &str| status?.tiers.iter().find(|status| status.tier == tier);
    let row = |record: TierRecord| {
        let live = live(&record.tier);
        TierRow {
            copying: live.and_then(|live| live.copying),
            again_ms: live.and_then(|live| live.again_ms),
            record,
        }
    };
    record.tiers.into_iter().map(row).collect()
}

/// A line for each tier: what it has, and what is under way or wrong.
fn tier_text(row: &TierRow) -> String {
    let TierRecord { tier, versions, waiting, error, .. } = &row.record;
    let mut line = match versions.last() {
        Some(newest) if versions.len() == 1 => format!("tier {tier}: image {newest}"),
        Some(newest) => format!("tier {tier}: {} images, newest {newest}", versions.len()),
        None => format!("tier {tier}: no image"),
    };
    if let Some(copy) = &row.copying {
        let (done, total) = (report::size(copy.done), report::size(copy.total));
        line.push_str(&format!(", copying image {}: {done} of {total}", copy.epoch));
    }
    if let Some(why) = &row.record.read_only {
        line.push_str(&format!(", read-only: {why}"));
    }
    if let Some(why) = &row.record.single_writer {
        line.push_str(&format!(", for a single writer: {why}; run the job on one host at a time"));
    }
    if !waiting.is_empty() {
        line.push_str(&format!(", {} wait", waiting.len()));
    }
    if let Some(error) = error {
        let again = row.again_ms.map(|ms| format!(" (tried again in {} s)", ms.div_ceil(1000)));
        line.push_str(&format!(": {error}{}", again.unwrap_or_default()));
    }
    line + "\n"
}

fn images(row: &Row) -> String {
    let elsewhere = elsewhere(row);
    let under_way = row.under_way.iter().map(|now| report::under_way(now) + "\n");
    let tiers: String = under_way.chain(row.tiers.iter().map(tier_text)).chain(saved_text(row)).collect();
    if row.images.is_empty() && elsewhere.is_empty() {
        return format!("job {} has no image\n{tiers}", row.job);
    }
    let tier_rows = &row.tiers;
    let cells = |row: &ImageRow| {
        let ImageRow { info: image, tiers, .. } = row;
        vec![
            image.epoch.to_string(),
            image.parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string()),
            report::age(image.created_ns),
            report::short_time(image.stop_ns),
            report::size(image.program_bytes),
            report::size(image.bytes),
            tiers.join(", "),
            remark(row, tier_rows),
        ]
    };
    let mut rows: Vec<Vec<String>> = row.images.iter().map(cells).collect();
    rows.extend(elsewhere);
    rows.sort_by_key(|cells| cells[0].parse::<u64>().unwrap_or(0));
    let mut head = vec!["IMAGE", "PARENT", "AGE", "STOP TIME", "MEMORY", "ADDED", "TIERS", "REMARK"];
    if row.tiers.is_empty() {
        head.remove(6);
        rows.iter_mut().for_each(|cells| drop(cells.remove(6)));
    }
    let table = Table {
        head,
        rows,
        right: &["IMAGE", "PARENT", "AGE", "STOP TIME", "MEMORY", "ADDED"],
        elastic: &["TIERS"],
        optional: &["PARENT", "STOP TIME", "MEMORY"],
        below: true,
    };
    table.shown() + &tiers
}

/// What restarts have kept.
fn saved_text(row: &Row) -> Option<String> {
    let what = row.saved.text()?;
    let job = &row.job;
    Some(format!(
        "saved/: {what} that restarts cut off or replaced; `holdfast prune --saved {job}` deletes them\n"
    ))
}

/// What is known of the tiers below the store.
fn lower(row: &Row) -> impl Iterator<Item = &TierRow> {
    row.tiers.iter().filter(|tier| !Place::is_store(&tier.record.tier))
}

/// Images that only lower tiers have.
fn elsewhere(row: &Row) -> Vec<Vec<String>> {
    let here: BTreeSet<u64> = row.images.iter().map(|image| image.info.epoch.0).collect();
    // One that had the number of an image here has it alone when that is gone.
    let all = |tier: &TierRow| {
        let others = tier.record.others.iter().map(|other| other.image);
        tier.record.versions.iter().copied().chain(others).collect::<BTreeSet<u64>>()
    };
    let there: BTreeSet<u64> = lower(row).flat_map(all).collect();
    let cells = |epoch: &u64| {
        let has = lower(row).filter(|tier| all(tier).contains(epoch));
        let tiers: Vec<&str> = has.map(|tier| tier.record.tier.as_str()).collect();
        let dash = || "-".to_owned();
        let number = epoch.to_string();
        vec![number, dash(), dash(), dash(), dash(), dash(), tiers.join(", "), "not in the store".to_owned()]
    };
    there.difference(&here).map(cells).collect()
}

/// What there is to be said of an image.
fn remark(row: &ImageRow, tiers: &[TierRow]) -> String {
    let own = match row.of_last_run || row.info.broken.is_some() {
        true => report::remark(&row.info),
        false => "of an earlier run".to_owned(),
    };
    let others = tiers.iter().flat_map(|tier| tier.record.others.iter().map(move |other| (tier, other)));
    let others = others.filter(|(_, other)| other.image == row.info.epoch.0);
    let said = others.map(|(tier, other)| format!("tier {}: {other}", tier.record.tier));
    Some(own).filter(|own| !own.is_empty()).into_iter().chain(said).collect::<Vec<_>>().join("; ")
}

/// What a job is doing, or what is wrong with it.
fn note(row: &Row) -> String {
    match &row.last_error {
        _ if let Some(now) = &row.under_way => report::under_way(now),
        Some(error) => format!("the last checkpoint failed: {error}"),
        None if row.state == "no agent" => "its agent has died: no more checkpoints".to_owned(),
        None if row.last.is_some_and(|last| last.stop_failed && last.ended.is_some()) => {
            "its last image failed (`holdfast logs` says why), and its program has ended by itself".to_owned()
        }
        None if row.state == "lost" && row.newest.is_some() => "`holdfast restart` goes on".to_owned(),
        None => String::new(),
    }
}

fn cells(row: &Row) -> Vec<String> {
    let all = || row.images.iter().map(|image| &image.info);
    let newest = newest(&row.images);
    let broken = all().filter(|image| image.broken.is_some()).count();
    let dash = || "-".to_owned();
    let count = row.images.len();
    let command: Vec<String> = row.command.iter().map(Name::to_string).collect();
    vec![
        row.job.clone(),
        state(row),
        since_ns(row).map_or_else(dash, report::age),
        row.pid.map_or_else(dash, |pid| pid.to_string()),
        match newest.map(report::remark).filter(|remark| !remark.is_empty()) {
            _ if broken > 0 => format!("{count} ({broken} damaged)"),
            None => count.to_string(),
            Some(remark) => format!("{count} ({remark})"),
        },
        newest.map_or_else(dash, |image| image.epoch.to_string()),
        newest.and_then(|image| image.parent).map_or_else(dash, |parent| parent.to_string()),
        newest.map_or_else(dash, |image| report::age(image.created_ns)),
        newest.map_or_else(dash, |image| report::size(image.bytes)),
        report::size(row.disk_bytes),
        command.join(" "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::last_run::Ended;
    use holdfast_image::control::TierStatus;
    use holdfast_image::record::UnsavedFile;

    fn image(epoch: u64, parent: Option<u64>, bytes: u64) -> ImageInfo {
        ImageInfo {
            epoch: Epoch(epoch),
            created_ns: u64::MAX,
            run_ns: 0,
            bytes,
            total_bytes: 4096,
            program_bytes: 1 << 20,
            stop_ns: 1_000_000,
            parent: parent.map(Epoch),
            unsaved: Vec::new(),
            broken: None,
            complete: true,
        }
    }

    fn local(info: ImageInfo) -> ImageRow {
        let (created, tiers) = (report::utc(info.created_ns), vec!["local".into()]);
        ImageRow { created, of_last_run: true, info, tiers }
    }

    #[test]
    fn images_tell_their_parent_and_what_they_added() {
        let row = Row {
            job: "sim".into(),
            state: "stopped",
            status: None,
            signal: None,
            started: None,
            ended: None,
            last: None,
            pid: None,
            agent_pid: None,
            command: vec![Name(b"./sim".to_vec())],
            gang: None,
            newest: Some(Epoch(2)),
            last_error: None,
            stop_failed: false,
            restarts: 0,
            under_way: None,
            images: vec![local(image(1, None, 4096)), local(image(2, Some(1), 512))],
            saved: saved::Sum { files: 2, bytes: 1024 },
            disk_bytes: 5632,
            tiers: Vec::new(),
        };
        assert_eq!(
            images(&row),
            "IMAGE  PARENT  AGE  STOP TIME   MEMORY    ADDED  REMARK\n    \
             1       -   0s    1.00 ms  1.0 MiB  4.0 KiB\n    \
             2       1   0s    1.00 ms  1.0 MiB    512 B\n\
             saved/: 2 files, 1.0 KiB that restarts cut off or replaced; `holdfast prune --saved sim` deletes them\n"
        );
        assert_eq!(
            cells(&row),
            ["sim", "stopped", "-", "-", "2", "2", "1", "0s", "512 B", "5.5 KiB", "./sim"]
        );
        let unsaved = UnsavedFile { path: Name::from("/data"), bytes: 7, reason: None };
        let image = local(ImageInfo { unsaved: vec![unsaved], ..image(3, None, 1) });
        assert_eq!(remark(&image, &[]), "warning: a file is not saved");
        let row = Row { images: vec![image], ..row };
        assert_eq!(cells(&row)[4], "1 (warning: a file is not saved)");
        let none = Row { images: Vec::new(), saved: saved::Sum::default(), ..row };
        assert_eq!(images(&none), "job sim has no image\n");
    }

    #[test]
    fn a_state_has_its_status_and_its_date() {
        let ended = |how| LastRun { ended: Some(Ended { at_ns: u64::MAX, how }), ..LastRun::default() };
        let row = |last: LastRun| Row {
            job: "sim".into(),
            state: last.state(),
            status: if let Some(Ended { how: How::Status(status), .. }) = last.ended {
                Some(status)
            } else {
                None
            },
            signal: if let Some(Ended { how: How::Signal(signal), .. }) = last.ended {
                Some(signal)
            } else {
                None
            },
            started: None,
            ended: None,
            last: Some(last),
            pid: None,
            agent_pid: None,
            command: Vec::new(),
            gang: None,
            newest: None,
            last_error: None,
            stop_failed: false,
            restarts: 0,
            under_way: None,
            images: Vec::new(),
            saved: saved::Sum::default(),
            disk_bytes: 0,
            tiers: Vec::new(),
        };
        let shown = |last| {
            let row = row(last);
            let cells = cells(&row);
            [cells[1].clone(), cells[2].clone()]
        };
        assert_eq!(shown(ended(How::Status(0))), ["done", "0s"]);
        assert_eq!(shown(ended(How::Status(3))), ["failed (3)", "0s"]);
        assert_eq!(shown(ended(How::Signal(9))), ["killed (SIGKILL)", "0s"]);
        assert_eq!(shown(ended(How::Checkpointed(Epoch(2)))), ["checkpointed", "0s"]);
        assert_eq!(shown(LastRun::default()), ["lost", "-"]);
        let line = state_line(&row(LastRun { image: Some(Epoch(7)), ..ended(How::Status(3)) }));
        let begin = "job sim: failed, started from image 7 at 1970-01-01T00:00:00Z, ended with status 3 at ";
        assert!(line.starts_with(begin), "{line}");
        // An image of an earlier run is no image to go on from.
        let mut earlier = local(image(1, None, 1));
        earlier.of_last_run = false;
        assert_eq!(remark(&earlier, &[]), "of an earlier run");
        assert!(newest(&[earlier]).is_none());
    }

    #[test]
    fn tiers_tell_where_an_image_is_and_what_waits() {
        let record = TierRecord {
            tier: "dir=/pfs".into(),
            versions: vec![1, 2],
            waiting: vec![3, 4],
            error: Some("not reachable".into()),
            ..TierRecord::default()
        };
        let record = TiersRecord { tiers: vec![record] };
        let at = |info, tiers: &[&str]| ImageRow {
            tiers: tiers.iter().map(|&t| t.to_owned()).collect(),
            ..local(info)
        };
        let live = TierStatus { tier: "dir=/pfs".into(), again_ms: Some(1), ..TierStatus::default() };
        let status = JobStatus { tiers: vec![live], ..JobStatus::default() };
        let row = Row {
            job: "sim".into(),
            state: "running",
            status: None,
            signal: None,
            started: None,
            ended: None,
            last: None,
            pid: None,
            agent_pid: None,
            command: Vec::new(),
            gang: None,
            newest: Some(Epoch(3)),
            last_error: None,
            stop_failed: false,
            restarts: 0,
            under_way: None,
            images: vec![at(image(2, None, 1), &["local", "dir=/pfs"]), local(image(3, Some(2), 1))],
            saved: saved::Sum::default(),
            disk_bytes: 0,
            tiers: tier_rows(record, Some(&status)),
        };
        assert_eq!(
            images(&row),
            "IMAGE  PARENT  AGE  STOP TIME   MEMORY  ADDED  TIERS            REMARK\n    \
             1       -    -          -        -      -  dir=/pfs         not in the store\n    \
             2       -   0s    1.00 ms  1.0 MiB    1 B  local, dir=/pfs\n    \
             3       2   0s    1.00 ms  1.0 MiB    1 B  local\n\
             tier dir=/pfs: 2 images, newest 2, 2 wait: not reachable (tried again in 1 s)\n"
        );
        let json = serde_json::to_value(&row).unwrap_or_default();
        assert_eq!(json["images"][0]["tiers"], serde_json::json!(["local", "dir=/pfs"]));
        assert_eq!(json["images"][0]["epoch"], 2);
        assert_eq!(json["tiers"][0]["waiting"], serde_json::json!([3, 4]));
    }
}
