//! `--restart-on-failure`: a process that starts `run` or `restart` as its child, and after each failure a `restart` of
//! the newest image.
//!
//! It only waits: signals are passed on, streams and the terminal are those of the child. Invariants: what is left of
//! a program is ended before it is restarted; what its user has ended is not restarted; there are no more restarts than
//! were asked for. Fails by: the end of the last child, with words why there is no further one.

use super::restart_choice::{Attempts, Failed};
use super::restart_places::{Chosen, Places};
use crate::args::{GangArgs, RunArgs, supervision};
use crate::entries::{ENV_SUPERVISED, own_environment, variable};
use crate::exit::{Exit, Failure};
use crate::front::supervise::{Ending, StartState};
use crate::gang::folder::GangFolder;
use crate::gang::image::MemberImage;
use crate::gang::ssh;
use crate::helper::binary;
use crate::last_run::{BY_USERS, LastRun, OBEYS_WITHIN, Verdict};
use crate::settings::{GangChoice, Recipe, member_job, signal_name};
use crate::{file_system, leftover, log, report, same_run};
use holdfast_sys::spawn::Start;
use holdfast_sys::{attributes, clock, fd, poll, ptrace, signals};
use holdfast_tiers::{Job, Store};
use serde::{Deserialize, Serialize};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

const NAME: &str = "restarts.json";
/// Longer ones are not ours: bytes.
const LONGEST: u64 = 1 << 20;
/// So long the end of a program is waited for of which nothing is left.
const SETTLING: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);

/// A restart, as the job's folder has it: `restarts.json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Restarted {
    /// CLOCK_REALTIME, nanoseconds.
    pub at_ns: u64,
    /// From this image; of a gang: from this image of the gang.
    pub image: u64,
    /// What has failed.
    pub why: String,
}

/// The restarts after failures of a job since it was run. What cannot be read is as if there were none.
pub fn of(job: &Job) -> Vec<Restarted> {
    let read = || {
        let mut text = Vec::new();
        file_system::open_own(&job.dir().join(NAME))?.take(LONGEST).read_to_end(&mut text).ok()?;
        let (all, run): (Vec<Restarted>, _) = (serde_json::from_slice(&text).ok()?, Recipe::read(job).ok()?);
        Some(all.into_iter().filter(|one| one.at_ns > run.created_ns).collect())
    };
    read().unwrap_or_default()
}

fn write(job: &Job, all: &[Restarted]) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(all)?;
    file_system::write_own(&job.dir().join(NAME), &text)
}

/// The job that is supervised: it may not be there yet.
struct Watched<'a> {
    store: &'a Store,
    job: String,
    /// Of a member of a gang.
    gang: Option<(String, GangChoice)>,
    args: &'a RunArgs,
    most: u32,
    places: Places,
    attempts: Attempts,
}

/// `run --restart-on-failure`.
///
/// # Errors
/// It has no name, or what was asked for does not go together; nothing was started.
pub fn run(args: &RunArgs, root: Option<&Path>, most: u32) -> Result<Ending, Failure> {
    let usage = |what: &str| Failure::new(Exit::Usage, what);
    let Some(name) = &args.name else {
        return Err(usage("--restart-on-failure needs --name: the job that is restarted"));
    };
    let choice = args.gang.gang;
    if !args.on_failure.spare.is_empty() && choice != Some(GangChoice::Ssh) {
        return Err(usage("--spare is for a gang that is run with --gang ssh"));
    }
    let store = crate::names::open_store(root)?;
    let place = choice.map(|choice| choice.place(|variable| std::env::var(variable).ok()));
    let place = place.transpose().map_err(|why| usage(&why))?;
    let gang = choice.zip(place).map(|(choice, (member, members))| match choice {
        GangChoice::Ssh => (name.clone(), choice),
        _ => (name.clone(), GangChoice::Place(member, members)),
    });
    let job = place.map_or_else(|| name.clone(), |(member, _)| member_job(name, member));
    let (store, places) = (&store, Places::of(&args.on_failure.spare));
    Watched { store, job, gang, args, most, places, attempts: Attempts::default() }
        .run(std::env::args_os().skip(1).collect())
}

impl Watched<'_> {
    fn run(mut self, first: Vec<OsString>) -> Result<Ending, Failure> {
        let state = StartState::take()?;
        // What our child leaves when it ends is ours then, and no one else's.
        attributes::adopt_orphans();
        let (mut words, mut told) = (first, Vec::<Restarted>::new());
        loop {
            let before = self.last();
            if let Some(signal) = state.told_to_end().filter(|_| !told.is_empty()) {
                return Ok(Ending::Program(ExitStatus::from_raw(signal)));
            }
            let child = start(&state, &words, told.len() < self.most as usize)?;
            leave_output();
            let (status, passed_on) = wait(&state, child)?;
            let (why, how) = match self.end(before.as_ref(), status, passed_on, told.len()) {
                End::Well => return Ok(Ending::Program(status)),
                End::ByUser(why) => {
                    self.tell(&format!("{why}: not restarted (--restart-on-failure)"));
                    return Ok(Ending::Program(status));
                }
                End::Failed { why, how } => (why, how),
            };
            leftover::end();
            if told.len() >= self.most as usize {
                let most = self.most;
                let text =
                    format!("{why}; it was restarted {most} times (--restart-on-failure {most}): not again");
                report::warn(&text);
                return Ok(Ending::Program(status));
            }
            let Some(newest) = self.newest(&|_| true)? else {
                report::warn(&format!("{why}; there is no image of this run to restart it from"));
                return Ok(Ending::Program(status));
            };
            self.attempts.failed(how, newest);
            if let Some(times) = self.attempts.too_many() {
                let text = format!(
                    "{why}; it has failed {times} times in a row: not again. `holdfast restart {}@N` goes on from an \
                     earlier image",
                    self.name()
                );
                report::warn(&text);
                return Ok(Ending::Program(status));
            }
            if let Some(signal) = pause_for(&state, self.attempts.pause(how)) {
                return Ok(Ending::Program(ExitStatus::from_raw(signal)));
            }
            let image = self.trusted(newest)?;
            self.attempts.restarted(image, newest);
            words = match self.words_in_time(&state, image, newest)? {
                Ok(words) => words,
                Err(signal) => return Ok(Ending::Program(ExitStatus::from_raw(signal))),
            };
            told.push(Restarted { at_ns: clock::realtime_ns(), image, why: why.clone() });
            self.note(&told, &format!("{why}; restart {} of {} from image {image}", told.len(), self.most));
        }
    }

    fn name(&self) -> &str {
        self.gang.as_ref().map_or(&self.job, |(name, _)| name)
    }

    fn found(&self) -> Option<Job> {
        self.store.job(&self.job).ok()
    }

    fn last(&self) -> Option<LastRun> {
        LastRun::read(&self.found()?)
    }

    /// How the command has ended. `passed_on`: how long ago it got a signal that ends it.
    fn end(
        &self,
        before: Option<&LastRun>,
        status: ExitStatus,
        passed_on: Option<(i32, Duration)>,
        restarts: usize,
    ) -> End {
        let job = &self.job;
        let is_its = |last: &LastRun| before.is_none_or(|before| before.started_ns != last.started_ns);
        let look = || self.last().filter(is_its);
        let is_open = |ran: Option<LastRun>| ran.is_some_and(|last| last.ended.is_none());
        // What one look has found the next may not: the agent writes it anew.
        let mut ran = look();
        if !status.success() && !is_by_user(status) && is_open(ran) {
            // The agent takes what is left for the program; when that has ended, it writes down how the program did.
            leftover::end();
            let begun = Instant::now();
            while is_open(ran) && begun.elapsed() < SETTLING {
                thread::sleep(LOOK);
                ran = look();
            }
        }
        let failed = |why, how| End::Failed { why, how };
        let Some(last) = ran.filter(|_| !status.success()) else {
            // Where it is the first, Holdfast itself has failed, and has said why.
            let is_told = status.success() || restarts == 0 || is_by_user(status);
            return if is_told {
                End::Well
            } else {
                failed(format!("job {job} could not be restarted ({status})"), Failed::Restart)
            };
        };
        let by_what = if last.lost { Failed::Lost } else { Failed::Program(last.duration()) };
        let how = if last.lost { LOST.to_owned() } else { last.end_text() };
        match (last.verdict(), passed_on.filter(|(_, ago)| *ago < OBEYS_WITHIN)) {
            (Some(Verdict::Well), _) => End::Well,
            (Some(Verdict::ByUser(rule)), _) => End::ByUser(format!("job {job} {how}, {rule}")),
            (Some(Verdict::Failed), _) => failed(format!("job {job} {how}"), by_what),
            // Rests of it may be there yet: then the agent says that it goes on.
            (None, _) if is_by_user(status) => {
                let signal = signal_name(status.signal().unwrap_or_default());
                End::ByUser(format!("job {job} was killed by {signal}, which is no failure"))
            }
            // The front was killed.
            (None, Some((signal, ago))) => End::ByUser(format!(
                "the command of job {job} was lost ({status}) {} s after {} was passed on to it",
                ago.as_secs(),
                signal_name(signal)
            )),
            (None, None) => failed(format!("the command of job {job} was lost ({status})"), Failed::Lost),
        }
    }

    /// The newest image to go on from, of those.
    fn newest(&self, among: &dyn Fn(u64) -> bool) -> Result<Option<u64>, Failure> {
        let Some(job) = self.found() else { return Ok(None) };
        // As it was run: the place of a gang is in it.
        same_run::newest_of(&job, Recipe::read(&job)?.settings.gang.as_ref(), among)
    }

    /// The newest one that is not suspect; of a gang whose members agree on one, the newest.
    fn trusted(&self, newest: u64) -> Result<u64, Failure> {
        if self.agrees() {
            return Ok(newest);
        }
        Ok(self.newest(&|image| self.attempts.trusts(image))?.unwrap_or(newest))
    }

    /// Whether the members of the gang, which their user starts, agree on an image.
    fn agrees(&self) -> bool {
        matches!(self.gang, Some((_, GangChoice::Place(..))))
    }

    /// The command line of a restart, when there are hosts for it; or a signal that ends us.
    ///
    /// # Errors
    /// For long there are none.
    fn words_in_time(
        &mut self,
        state: &StartState,
        image: u64,
        newest: u64,
    ) -> Result<Result<Vec<OsString>, i32>, Failure> {
        loop {
            let failure = match self.words(image) {
                Err(failure) if failure.exit == Exit::Refused => failure,
                words => return words.map(Ok),
            };
            self.attempts.failed(Failed::NoHost, newest);
            if self.attempts.too_many().is_some() {
                return Err(failure);
            }
            let pause = self.attempts.pause(Failed::NoHost);
            report::warn(&format!("{failure}; it is tried again in {} s", pause.as_secs()));
            if let Some(signal) = pause_for(state, pause) {
                return Ok(Err(signal));
            }
        }
    }

    /// The command line of a restart.
    fn words(&mut self, image: u64) -> Result<Vec<OsString>, Failure> {
        let mut words: Vec<OsString> = vec!["--store".into(), self.store.root().into()];
        words.extend(["restart", "--stdio", "keep"].map(OsString::from));
        words.push(if self.agrees() {
            self.name().into()
        } else {
            format!("{}@{image}", self.name()).into()
        });
        if self.gang.is_some() {
            let GangArgs { gang_listen, gang_wait, .. } = &self.args.gang;
            let wait = gang_wait.map(|wait| format!("{}s", wait.as_secs()));
            for (option, value) in [("--gang-listen", gang_listen), ("--gang-wait", &wait)] {
                words.extend(value.iter().flat_map(|value| [option.into(), OsString::from(value)]));
            }
        }
        match self.gang.clone() {
            None => {}
            Some((_, GangChoice::Place(member, members))) => {
                words.extend(["--gang".into(), format!("{member}/{members}").into()]);
            }
            Some((gang, _)) => {
                words.extend(["--gang".into(), "ssh".into()]);
                if let Some(hosts) = self.hosts(&gang, image)? {
                    words.extend(["--hosts".into(), hosts.join(",").into()]);
                }
            }
        }
        Ok(words)
    }

    /// Where the members are to be, if one of them is not where it was.
    ///
    /// # Errors
    /// A host is not reached, and no other one is left.
    fn hosts(&mut self, gang: &str, image: u64) -> Result<Option<Vec<String>>, Failure> {
        let Some(folder) = GangFolder::open(self.store, gang)? else { return Ok(None) };
        let image = folder.image(image)?;
        let remote = |member: &MemberImage| {
            let ssh = member.ssh.as_ref();
            ssh.map_or_else(
                || (member.host.clone(), Vec::new()),
                |ssh| (ssh.host.clone(), ssh.options.clone()),
            )
        };
        let (were, options): (Vec<String>, Vec<Vec<String>>) = image.members.iter().map(remote).unzip();
        // A host in the place of another one is reached as those are.
        let usual = options.iter().find(|options| !options.is_empty()).cloned().unwrap_or_default();
        let options_of = |host: &String| {
            let at = were.iter().position(|one| one == host);
            at.and_then(|at| options.get(at)).unwrap_or(&usual)
        };
        let unreached = |hosts: &[String]| {
            let asked: Vec<(&str, &[String])> =
                hosts.iter().map(|host| (host.as_str(), options_of(host).as_slice())).collect();
            ssh::unreached(&asked)
        };
        match self.places.choose(&were, &unreached, &report::note)? {
            Chosen::On(now) => Ok((now != were).then_some(now)),
            Chosen::NoneFor(lost) => {
                let what = match self.args.on_failure.spare.is_empty() {
                    true => "no spare host was named (--spare)",
                    false => "no spare host is left",
                };
                let why = format!("gang {gang} is not restarted: ssh does not reach {lost}, and {what}");
                Err(Failure::new(Exit::Refused, why))
            }
        }
    }

    /// Says it, to the user and in the log of the job.
    fn note(&self, told: &[Restarted], text: &str) {
        self.tell(text);
        let Some(job) = self.found() else { return };
        if let Err(error) = write(&job, told) {
            report::warn(&format!("writing {NAME} of job {}: {error}", job.name()));
        }
    }

    /// The same without a restart.
    fn tell(&self, text: &str) {
        report::warn(text);
        if let Some(Ok(log)) = self.found().map(|job| log::open(&job)) {
            let line = format!("{} {text}\n", report::utc(clock::realtime_ns()));
            let _ = File::from(log).write_all(line.as_bytes());
        }
    }
}

/// How a command has ended.
enum End {
    /// As it was to be, or by something for which a restart is no remedy, and which was told.
    Well,
    /// By its user; how that is known.
    ByUser(String),
    /// What has failed, in words, and what that was.
    Failed { why: String, how: Failed },
}

const LOST: &str = "was ended, for its agent or its gang was lost";

/// Whether a signal with which users end programs has ended the command.
fn is_by_user(status: ExitStatus) -> bool {
    status.signal().is_some_and(|signal| BY_USERS.contains(&signal))
}

/// Starts the child, in the state in which we were started.
fn start(state: &StartState, words: &[OsString], again: bool) -> Result<i32, Failure> {
    let text = |word: &OsString| {
        CString::new(word.as_bytes()).map_err(|_| Failure::new(Exit::Usage, "an argument holds a NUL byte"))
    };
    let path = binary()?;
    let named = [OsString::from("holdfast")];
    let arguments = named.iter().chain(words).map(text).collect::<Result<Vec<_>, _>>()?;
    let mut environment = own_environment()?;
    environment.push(variable(ENV_SUPERVISED, supervision(again).as_ref())?);
    let closed =
        (0..).zip(signals::at_start().closed).filter(|(_, closed)| *closed).map(|(fd, _)| fd).collect();
    let start = Start {
        path: text(&path.into_os_string())?,
        arguments,
        environment,
        mask: state.mask,
        ignored: state.ignored.clone(),
        closed,
        ..Start::default()
    };
    start.spawn().map_err(|error| Failure::system("starting holdfast", &error))
}

/// A file to which the program writes is not ours: a restart goes on in it where the image was, unless a command that
/// starts it writes there, too. We write to standard error alone.
fn leave_output() {
    let is_file = std::fs::metadata("/proc/self/fd/1").is_ok_and(|about| about.is_file());
    if is_file && let Ok(null) = File::options().write(true).open("/dev/null") {
        // What stays is written to where it ends.
        let _ = fd::replace(1, null.as_fd());
    }
}

/// Waits for its end, and passes on what is sent to us. The last signal of those that end programs, and how long ago it
/// was passed on.
fn wait(state: &StartState, pid: i32) -> Result<(ExitStatus, Option<(i32, Duration)>), Failure> {
    let mut told: Option<(i32, Instant)> = None;
    loop {
        while let Some(arrived) = state.next() {
            if BY_USERS.contains(&arrived.signal) {
                told = Some((arrived.signal, Instant::now()));
            }
            // The terminal's has reached the child.
            if arrived.signal != libc::SIGCHLD && !arrived.is_by_kernel() {
                let _ = ptrace::kill(pid, arrived.signal);
            }
        }
        // Orphans of the program are our children as well.
        let failed = |error| Failure::system("waiting for holdfast", &error);
        while let Some((ended, status)) = attributes::wait_any_ended().map_err(failed)? {
            if ended == pid {
                let told = told.map(|(signal, at)| (signal, at.elapsed()));
                return Ok((ExitStatus::from_raw(status), told));
            }
        }
        poll::readable(&[state.as_fd()], None)
            .map_err(|error| Failure::system("waiting for holdfast", &error))?;
    }
}

/// Waits so long; a signal that ends us.
fn pause_for(state: &StartState, time: Duration) -> Option<i32> {
    let begun = Instant::now();
    loop {
        let told = state.told_to_end();
        let left = time.saturating_sub(begun.elapsed());
        if told.is_some() || left.is_zero() {
            return told;
        }
        let _ = poll::readable(&[state.as_fd()], Some(left));
    }
}
