//! The conformance run: `make support` writes docs/support.md from what it finds, nothing by hand.
//!
//! Each program of the suite (`suite.rs`), as root and as an ordinary user: plain under `holdfast run`; one
//! checkpoint, kill -9, restart; three increments while it goes on, restart of the last; ten restarts in a chain.
//! Each thing that is refused by name (`refused.rs`): the checkpoint is refused, the program goes on. A report of
//! what works is of use only if it is whole: it needs root, which alone can be both users. At the end comes what is
//! known to be lost (`known_losses.rs`).
//!
//! `support [--only NAME]… [--jobs N]`; with `--only` nothing is written. Status 1: something fails that should work.

use anyhow::{Context, Result, bail, ensure};
use holdfast_tests::apps::NotHere;
use holdfast_tests::known_losses;
use holdfast_tests::random::Random;
use holdfast_tests::refused::{self, Outcome, REFUSED, Refused};
use holdfast_tests::restart_chain::{Plan, TooSoon, run_chain};
use holdfast_tests::sandbox::{Bed, User, am_root};
use holdfast_tests::suite::{ENTRIES, Entry};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The ways in which each program runs.
const FORMS: [(&str, u32, u32); 4] =
    [("plain", 0, 0), ("one checkpoint", 1, 1), ("three increments", 1, 3), ("ten restarts", 10, 1)];

const USERS: [User; 2] = [User::Root, User::Ordinary];

/// The heading of what is refused.
const REFUSED_GROUP: &str = "Refused by name, the program goes on";

/// What is tried: a line of one of the two lists.
#[derive(Clone, Copy)]
enum Line {
    Runs(&'static Entry),
    Refused(&'static Refused),
}

/// What was found as one user.
#[derive(Clone)]
enum Found {
    Works,
    /// When it was tried alone; how it failed before, beside others.
    WorksAlone(String),
    Refused(String),
    NotHere(String),
    Fails(String),
}

impl Line {
    fn name(self) -> &'static str {
        match self {
            Line::Runs(entry) => entry.name,
            Line::Refused(entry) => entry.name,
        }
    }

    /// Why it is known not to work.
    fn open(self) -> Option<&'static str> {
        match self {
            Line::Runs(entry) => entry.open,
            Line::Refused(_) => None,
        }
    }

    fn find(self, user: User) -> Found {
        match self {
            Line::Runs(Entry { root: Some(why), .. }) if user == User::Ordinary => {
                Found::NotHere((*why).to_owned())
            }
            Line::Runs(entry) => all_forms(entry, user),
            Line::Refused(entry) if !entry.whom.contains(&user) => {
                Found::NotHere(format!("not refused to {}", name_of(user)))
            }
            Line::Refused(entry) => match bed(user).and_then(|bed| refused::refuse(entry, &bed)) {
                Ok(Outcome::Refused(words)) => Found::Refused(words),
                Ok(Outcome::NotHere(why)) => Found::NotHere(why),
                Err(error) => Found::Fails(format!("{error:#}")),
            },
        }
    }
}

fn name_of(user: User) -> &'static str {
    match user {
        User::Root => "root",
        User::Ordinary => "ordinary user",
    }
}

fn bed(user: User) -> Result<Bed> {
    Bed::new(user).context("a folder for the run")
}

/// Every form, up to the first that fails. A program that ends before the tenth restart is tried again, slower.
fn all_forms(entry: &Entry, user: User) -> Found {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let mut random = Random::of(clock);
    for (form, rounds, images) in FORMS {
        let mut plan = Plan::exactly(rounds, images);
        let mut once = |plan| run_chain(&bed(user)?, &entry.app(), plan, &mut random);
        let mut result = once(plan);
        while result.as_ref().is_err_and(|error| error.is::<TooSoon>()) && plan.haste < 9 {
            plan = plan.sooner();
            result = once(plan);
        }
        if let Err(error) = result {
            if error.is::<NotHere>() {
                return Found::NotHere(error.to_string());
            }
            return Found::Fails(format!("{form}: {error:#}"));
        }
    }
    Found::Works
}

type Results = BTreeMap<(usize, usize), Found>;

/// Tries all lines as all users, several at a time.
fn try_all(lines: &[Line], jobs: usize) -> Results {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Results::new()));
    let start = Instant::now();
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let (line, user) = (number / USERS.len(), number % USERS.len());
            let Some(tried) = lines.get(line) else { return };
            let found = tried.find(USERS[user]);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            let (count, all) = (done.len() + 1, lines.len() * USERS.len());
            let (name, user_name) = (tried.name(), name_of(USERS[user]));
            println!(
                "{count}/{all} {:.0} s  {name} as {user_name}: {}",
                start.elapsed().as_secs_f64(),
                found.told()
            );
            done.insert((line, user), found);
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Tries once more, one after the other, what failed though it should work: the machine may have been busy.
fn try_again(lines: &[Line], results: &mut Results) {
    for ((line, user), found) in results.iter_mut() {
        let (Found::Fails(first), None) = (&found, lines[*line].open()) else { continue };
        let first = first.clone();
        let again = lines[*line].find(USERS[*user]);
        println!("again: {} as {}: {}", lines[*line].name(), name_of(USERS[*user]), again.told());
        *found = if let Found::Works = again { Found::WorksAlone(first) } else { again };
    }
}

impl Found {
    /// For the progress: everything that is known.
    fn told(&self) -> String {
        match self {
            Found::Works | Found::WorksAlone(_) => "works".to_owned(),
            Found::Refused(words) => format!("refused: {words}"),
            Found::NotHere(why) => format!("not here: {why}"),
            Found::Fails(why) => format!("FAILS: {why}"),
        }
    }

    /// For its cell of the table.
    fn cell(&self) -> &'static str {
        match self {
            Found::Works | Found::WorksAlone(_) => "yes",
            Found::Refused(_) => "refused",
            Found::NotHere(_) => "-",
            Found::Fails(_) => "no",
        }
    }

    fn remark(&self) -> Option<String> {
        match self {
            Found::Works => None,
            Found::WorksAlone(first) => {
                Some(format!("at the second try, alone; before: {}", one_line(first)))
            }
            Found::Refused(text) | Found::NotHere(text) | Found::Fails(text) => Some(one_line(text)),
        }
    }
}

/// The first line, without what differs from run to run, fit for a cell of a table.
fn one_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_prefix("holdfast: ").unwrap_or(line);
    without_numbers(&without_beds(line)).chars().take(160).collect::<String>().replace('|', "\\|")
}

/// The folder of a test is another one each time.
fn without_beds(line: &str) -> String {
    let mut parts = line.split("/holdfast-test-");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str("/…");
        text.push_str(part.find('/').map_or("", |end| &part[end..]));
    }
    text
}

/// Addresses, process ids and ports are others in each run.
fn without_numbers(line: &str) -> String {
    let is_other = |word: &str| word.len() > 4 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (mut text, mut word) = (String::new(), String::new());
    for c in line.chars().chain(['\0']) {
        if c.is_ascii_alphanumeric() {
            word.push(c);
            continue;
        }
        let number = word.strip_prefix("0x").unwrap_or(&word);
        let digits = number.bytes().any(|byte| byte.is_ascii_digit());
        text.push_str(if digits && is_other(number) { "…" } else { &word });
        word.clear();
        text.extend((c != '\0').then_some(c));
    }
    text
}

fn remark(line: Line, found: &[Option<&Found>]) -> String {
    let mut remarks: Vec<String> = Vec::new();
    for (user, found) in USERS.iter().zip(found) {
        let Some(text) = found.and_then(Found::remark) else { continue };
        match found {
            Some(Found::Refused(_)) if remarks.is_empty() => remarks.push(text),
            Some(Found::Refused(_)) => {}
            _ => remarks.push(format!("{}: {text}", name_of(*user))),
        }
    }
    remarks.extend(line.open().map(|why| format!("open: {why}")));
    remarks.join("; ")
}

/// The page, of all lines.
fn page(lines: &[Line], results: &Results, commit: &str) -> Result<String> {
    let forms = FORMS.map(|form| form.0).join(", ");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let works =
        |user: usize| results.iter().filter(|(at, found)| at.1 == user && found.cell() == "yes").count();
    let mut page = format!(
        "# What is supported\n\n\
         Written by `make support` on {date}, at commit {commit},\non Linux {kernel}; nothing in it is by hand.\n\
         Each line is a program of `tests/programs` that checks itself (`tests/src/suite.rs`), run in four forms:\n\
         {forms}. \"yes\": all four are right, with the\noutput of an undisturbed run.\n\
         Of {all} programs {root} work as root and {ordinary} as an ordinary user (uid 1000, no capabilities).\n\
         {refused} things are refused by name, and the program goes on.\n",
        date = output("date", &["-u", "+%F"])?,
        kernel = kernel.trim(),
        all = ENTRIES.len(),
        root = works(0),
        ordinary = works(1),
        refused = REFUSED.len(),
    );
    let mut group = "";
    for (number, &line) in lines.iter().enumerate() {
        let (own, feature, name) = match line {
            Line::Runs(entry) => (entry.group, entry.feature, entry.name),
            Line::Refused(entry) => (REFUSED_GROUP, entry.feature, entry.name),
        };
        if own != group {
            group = own;
            write!(
                page,
                "\n## {group}\n\n| feature | root | ordinary user | remark | test |\n|---|---|---|---|---|\n"
            )?;
        }
        let found = [results.get(&(number, 0)), results.get(&(number, 1))];
        let cells = found.map(|found| found.map_or("", Found::cell));
        let remark = remark(line, &found);
        writeln!(page, "| {feature} | {} | {} | {remark} | `{name}` |", cells[0], cells[1])?;
    }
    page.push_str(&known_losses::chapter());
    Ok(page)
}

fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).current_dir(checkout()).output()?;
    ensure!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The commit that the run is of, and whether anything but the page itself has been changed since.
fn commit() -> Result<String> {
    let commit = output("git", &["rev-parse", "--short", "HEAD"])?;
    let changed = output("git", &["status", "--porcelain", "--", ".", ":!docs/support.md"])?;
    Ok(if changed.is_empty() { commit } else { format!("{commit} with changes") })
}

fn settings() -> Result<(Vec<String>, usize)> {
    let (mut only, mut jobs) = (Vec::new(), 5);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--only" => only.push(value),
            "--jobs" => jobs = value.parse().context("--jobs")?,
            _ => bail!("unknown: {word}; support [--only NAME]… [--jobs N]"),
        }
    }
    Ok((only, jobs))
}

/// Whether everything works that should.
fn run() -> Result<bool> {
    ensure!(am_root(), "root is needed: it alone can be both users");
    let (only, jobs) = settings()?;
    let all = ENTRIES.iter().map(Line::Runs).chain(REFUSED.iter().map(Line::Refused));
    let chosen = |line: &Line| only.is_empty() || only.iter().any(|name| name == line.name());
    let lines: Vec<Line> = all.filter(chosen).collect();
    ensure!(!lines.is_empty(), "there is no such program in the suite: {}", only.join(", "));
    let commit = commit()?;
    let mut results = try_all(&lines, jobs);
    try_again(&lines, &mut results);
    if only.is_empty() {
        let path = checkout().join("docs/support.md");
        std::fs::write(&path, page(&lines, &results, &commit)?)?;
        println!("written: {}", path.display());
    }
    let bad: Vec<&str> = results
        .iter()
        .filter(|(at, found)| lines[at.0].open().is_none() && matches!(found, Found::Fails(_)))
        .map(|(at, _)| lines[at.0].name())
        .collect();
    if !bad.is_empty() {
        println!("fails though it should work: {}", bad.join(", "));
    }
    Ok(bad.is_empty())
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("support: {error:#}");
            ExitCode::from(64)
        }
    }
}
