//! Names on the command line: `JOB`, `JOB@N`, pids, and the name that a job gets when none is given.

use crate::exit::{Exit, Failure};
use holdfast_abi::SharedPage;
use holdfast_image::Epoch;
use holdfast_image::objects::ObjectRecord;
use holdfast_image::record::ProcessRecord;
use holdfast_tiers::{Image, Job, Record, Store, StoreError, parse_rank};
use std::ffi::OsString;
use std::path::Path;

/// `JOB` or `JOB@N`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageName {
    /// Name of the job.
    pub job: String,
    /// Number of the image; none: the newest.
    pub epoch: Option<Epoch>,
}

/// Parses `JOB[@N]`.
///
/// # Errors
/// Says what is accepted.
pub fn parse_image(text: &str) -> Result<ImageName, String> {
    match parse_image_or_version(text)? {
        ImageName { epoch: Some(Epoch(0)), .. } => Err(no_number("0")),
        image => Ok(image),
    }
}

/// The same, where the number may be that of a version of objects: those begin at 0.
///
/// # Errors
/// Says what is accepted.
pub fn parse_image_or_version(text: &str) -> Result<ImageName, String> {
    let (job, number) = text.split_once('@').map_or((text, None), |(job, number)| (job, Some(number)));
    // Ranks of sets of objects are jobs whose names have slashes.
    if text.contains('/') && parse_rank(job).is_none() {
        return Err(format!(
            "{text:?} is a path, and images have names: JOB, or JOB@3 (see `holdfast list`); `holdfast import FILE` \
             makes a job of an exported image"
        ));
    }
    let epoch = number.map(|number| number.parse().map(Epoch).map_err(|_| no_number(number))).transpose()?;
    Ok(ImageName { job: job.to_owned(), epoch })
}

fn no_number(number: &str) -> String {
    format!("{number:?} is not the number of an image; write JOB@3 (see `holdfast list`)")
}

/// Opens the store at the given place or the default one.
///
/// # Errors
/// Of the store.
pub fn open_store(root: Option<&Path>) -> Result<Store, Failure> {
    let Some(root) = root else { return Ok(Store::open_default()?) };
    let absolute = std::path::absolute(root)
        .map_err(|error| Failure::system(format_args!("finding {}", root.display()), &error))?;
    Ok(Store::open(&absolute)?)
}

/// Opens an existing job.
///
/// # Errors
/// No such job.
pub fn open_job(store: &Store, name: &str) -> Result<Job, Failure> {
    let job = store.job(name).map_err(|error| like_another(store, error))?;
    // Whatever is done with it: a killed agent cannot remove it.
    job.remove_dead_socket();
    Ok(job)
}

/// A rank of a set of objects has nothing that could be restarted.
///
/// # Errors
/// The job is one.
pub fn refuse_objects(name: &str) -> Result<(), Failure> {
    let Some((set, _)) = parse_rank(name) else { return Ok(()) };
    let what = format!(
        "{name} has objects that a program has put itself: it takes them back when it is started again \
         (holdfast_restore, VELOC_Restart); there is no process in the set {set} to restart"
    );
    Err(Failure::new(Exit::Refused, what))
}

/// A job that is not there, with the name that may have been meant.
fn like_another(store: &Store, error: StoreError) -> Failure {
    let StoreError::NotAJob { name, .. } = &error else { return error.into() };
    if matches!(store.gang_folder(name), Ok(Some(_))) {
        let message = format!(
            "{name} is a gang, whose members are jobs: name one of them, {name}.0 and so on (`holdfast list {name}` \
             shows the images of the gang)"
        );
        return Failure::new(Exit::Refused, message);
    }
    let all = store.jobs().unwrap_or_default();
    let Some(near) = nearest(name, &all) else { return error.into() };
    let message = format!("no job {name:?} in {}; did you mean {near:?}?", store.root().display());
    Failure::new(Exit::NotFound, message)
}

/// The one of these names that is most like a mistyped one, if any is.
fn nearest<'a>(name: &str, all: &'a [String]) -> Option<&'a String> {
    /// As clap has it for commands and options.
    const LIKE: f64 = 0.7;
    let scored = all.iter().map(|one| (strsim::jaro_winkler(name, one), one));
    let best = scored.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (best.0 > LIKE).then_some(best.1)
}

/// The image that was named, or the newest good one.
///
/// # Errors
/// There is none, or it is damaged.
pub fn open_image(job: &Job, epoch: Option<Epoch>) -> Result<Image, Failure> {
    let epoch = match epoch {
        Some(epoch) => epoch,
        None => job
            .images()?
            .last()
            .map(|info| info.epoch)
            .ok_or_else(|| Failure::new(Exit::NotFound, format!("job {} has no image", job.name())))?,
    };
    Ok(job.open_image(epoch)?)
}

/// The record of an image of processes, checked.
///
/// # Errors
/// It is damaged, or the image is of something else.
pub fn record_of(image: &Image) -> Result<ProcessRecord, StoreError> {
    let record = image.record();
    ProcessRecord::decode(record.kind, &record.bytes).map_err(|what| image.bad_record(what))
}

/// The record of an image of objects, checked.
///
/// # Errors
/// It is damaged, or the image is of something else.
pub fn objects_of(image: &Image) -> Result<ObjectRecord, StoreError> {
    let record = image.record();
    ObjectRecord::decode(record.kind, &record.bytes).map_err(|what| image.bad_record(what))
}

/// Whether a record is one that an image can have: of processes, or of objects.
///
/// # Errors
/// What is wrong with it.
pub fn check_record(record: &Record) -> Result<(), String> {
    match record.kind {
        ObjectRecord::KIND => ObjectRecord::decode(record.kind, &record.bytes).map(drop),
        kind => ProcessRecord::decode(kind, &record.bytes).map(drop),
    }
}

/// What a command is called after: its script, where it is an interpreter with one, else its program.
pub fn title(command: &[OsString]) -> String {
    /// Programs that are told which one to run.
    const LAUNCHERS: [&str; 2] = ["env", "nohup"];
    /// Programs that run a script.
    const INTERPRETERS: [&str; 20] = [
        "python", "pypy", "perl", "ruby", "node", "nodejs", "php", "lua", "luajit", "julia", "octave",
        "Rscript", "bash", "sh", "dash", "zsh", "ksh", "tclsh", "java", "guile",
    ];
    /// Ends of the names of scripts.
    const ENDS: [&str; 12] = ["py", "pl", "rb", "js", "mjs", "php", "lua", "jl", "R", "sh", "jar", "tcl"];
    let file = |word: &OsString| {
        let name = Path::new(word).file_name().unwrap_or_default().to_string_lossy().into_owned();
        match name.rsplit_once('.') {
            Some((stem, end)) if !stem.is_empty() && ENDS.contains(&end) => stem.to_owned(),
            _ => name,
        }
    };
    let is_assignment = |word: &OsString| word.to_string_lossy().contains('=');
    let mut words = command.iter().peekable();
    let mut name = words.next().map(file).unwrap_or_default();
    while LAUNCHERS.contains(&name.as_str())
        && let Some(next) = words.by_ref().find(|word| !is_assignment(word))
        && !next.to_string_lossy().starts_with('-')
    {
        name = file(next);
    }
    let kind = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    if !INTERPRETERS.contains(&kind) {
        return name;
    }
    while let Some(word) = words.next() {
        match (kind, word.to_string_lossy().as_ref()) {
            // A module of Python has a name of its own.
            ("python" | "pypy", "-m") | ("java", "-jar") => return words.next().map(file).unwrap_or(name),
            // The program is an argument.
            (_, "-c" | "-e" | "-E") => return name,
            ("python" | "pypy", "-W" | "-X") | ("java", "-cp" | "-classpath" | "--class-path") => {
                words.next();
            }
            (_, option) if option.starts_with('-') => {}
            _ => return file(word),
        }
    }
    name
}

/// Names that a job of this title may get, in the order in which they are to be tried: `sim-1`, `sim-2` …
pub fn candidates<'a>(title: &str, taken: &'a [String]) -> impl Iterator<Item = String> + 'a {
    let mut base: String = title
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' })
        .take(80)
        .collect();
    if base.is_empty() || base.starts_with(['.', '-']) {
        base.insert_str(0, "job");
    }
    (1..100_000_u32).map(move |number| format!("{base}-{number}")).filter(|name| !taken.contains(name))
}

/// Makes or opens a job under the given name, or under the first free name for `title`, and does `claim` with it,
/// which fails with [`Exit::Refused`] when another process was faster.
///
/// # Errors
/// Of the store, or of `claim`.
pub fn claim_job<T>(
    store: &Store,
    name: Option<&str>,
    title: &str,
    mut claim: impl FnMut(&Job) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if let Some(name) = name {
        // Jobs that have such names already are still opened.
        if name.starts_with('-') {
            let message = format!("{name:?} is not a job name: it looks like an option; give another one");
            return Err(Failure::new(Exit::Usage, message));
        }
        let job = store.create_job(name).map_err(|error| if_full(name, error.into()))?;
        return reachable(&job).and_then(|()| claim(&job));
    }
    let taken = store.jobs()?;
    let mut last = Failure::new(Exit::Internal, "no free name for the job; give one with --name");
    for name in candidates(title, &taken).take(20) {
        let job = store.create_job(&name).map_err(|error| if_full(&name, error.into()))?;
        match reachable(&job).and_then(|()| claim(&job)) {
            Err(failure) if failure.exit == Exit::Refused => last = failure,
            result => return result,
        }
    }
    Err(last)
}

/// Why a job cannot be made, in its user's words.
pub fn if_full(job: &str, failure: Failure) -> Failure {
    match failure.exit {
        Exit::CannotCreate => {
            let message = format!("the store is full: cannot create job {job} ({failure})");
            Failure { message, ..failure }
        }
        _ => failure,
    }
}

/// Whether the program's processes can register: libholdfast keeps the path of the socket in a buffer.
fn reachable(job: &Job) -> Result<(), Failure> {
    let (path, most) = (job.socket_path(), SharedPage::SOCKET_PATH_LEN - 1);
    let len = path.as_os_str().len();
    if len <= most {
        return Ok(());
    }
    // Only what was made just now goes.
    let _ = std::fs::remove_dir(job.dir());
    let message = format!(
        "the path of the job's socket, {}, has {len} bytes; {most} is the most: choose a shorter folder with --store",
        path.display()
    );
    Err(Failure::new(Exit::Usage, message))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn images_are_named_by_job_and_number() {
        assert_eq!(parse_image("sim").unwrap(), ImageName { job: "sim".into(), epoch: None });
        assert_eq!(parse_image("sim@12").unwrap(), ImageName { job: "sim".into(), epoch: Some(Epoch(12)) });
        for text in ["sim@", "sim@0", "sim@x", "sim@-1", "a@b@1"] {
            assert!(parse_image(text).is_err(), "{text}");
        }
        for text in ["/no/such.image", "./sim.hf", "dir/sim@3"] {
            let said = parse_image(text).unwrap_err();
            assert!(said.contains("JOB@3") && said.contains("holdfast import FILE"), "{said}");
        }
    }

    #[test]
    fn names_are_valid_and_new() {
        let taken = ["sim-1".to_owned(), "sim-3".to_owned()];
        let names: Vec<String> = candidates("sim", &taken).take(2).collect();
        assert_eq!(names, ["sim-2", "sim-4"]);
        assert_eq!(candidates("a b$ü", &[]).next().unwrap(), "a_b__-1");
        assert_eq!(candidates("...", &[]).next().unwrap(), "job...-1");
        assert_eq!(candidates("-rf", &[]).next().unwrap(), "job-rf-1");
        assert_eq!(candidates("", &[]).next().unwrap(), "job-1");
        assert!(candidates(&"x".repeat(300), &[]).next().unwrap().len() < 100);
    }

    #[test]
    fn a_mistyped_name_is_like_another() {
        let all = ["count".to_owned(), "sim".to_owned()];
        assert_eq!(nearest("cuont", &all), Some(&all[0]));
        assert_eq!(nearest("Sim", &all), Some(&all[1]));
        assert_eq!(nearest("x", &all), None);
        assert_eq!(nearest("count", &[]), None);
    }

    #[test]
    fn a_job_is_called_after_its_script() {
        let called = |line: &str| title(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for (line, name) in [
            ("/opt/sim -x", "sim"),
            ("./train.py", "train"),
            ("python3 train.py --epochs 3", "train"),
            ("/usr/bin/python3.11 -u -W ignore dir/train.py", "train"),
            ("python3 -m torch.distributed.run train.py", "torch.distributed.run"),
            ("python3 -c print(1)", "python3"),
            ("python3", "python3"),
            ("python3 -m", "python3"),
            ("bash -eu job.sh", "job"),
            ("sh -c sleep", "sh"),
            ("env A=1 python3 a.py", "a"),
            ("env -i python3 a.py", "env"),
            ("env", "env"),
            ("nohup ./a.out", "a.out"),
            ("java -cp x.jar Main", "Main"),
            ("java -jar app.jar", "app"),
            ("node server.v2.js", "server.v2"),
            ("./.py", ".py"),
            ("pythonic x.py", "pythonic"),
            ("", ""),
        ] {
            assert_eq!(called(line), name, "{line}");
        }
        assert_eq!(title(&[]), "");
    }
}
