//! The programs that the tests run, and what they print when nobody disturbs them.

use crate::artifacts::kit;
use crate::sandbox::{Bed, PATIENCE, User, am_root, shell_code, wait};
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Debian's interpreter: numpy belongs to it.
pub const PYTHON: &str = "/usr/bin/python3";

/// A program, how it is started, and which files it writes.
#[derive(Clone, Debug)]
pub struct App {
    /// Name for messages.
    pub name: String,
    /// Command line; relative paths are in `work/`.
    pub argv: Vec<String>,
    /// File of `work/` that standard input comes from.
    pub stdin: Option<String>,
    /// Files of `work/` that it leaves besides its standard output.
    pub results: Vec<String>,
    /// Shell commands that prepare `work/`.
    pub prepare: Option<String>,
    /// Folder of `work/` that is emptied between each kill and restart.
    pub emptied: Option<&'static str>,
    /// It does not run as root.
    pub refuses_root: bool,
    /// It replaces files by others that it has just written: an image from before has them open, and nobody has them
    /// any more, and its restart is refused.
    pub renames: bool,
    /// What it uses would be taken by another one of its kind: one chain at a time.
    pub alone: bool,
    /// Options of `holdfast run` that it needs.
    pub options: &'static [&'static str],
}

impl App {
    /// A C program of `tests/programs`.
    pub fn program(name: &str, arguments: &[&str]) -> App {
        let path = kit().program(name).to_string_lossy().into_owned();
        let mut argv = vec![path];
        argv.extend(arguments.iter().map(|a| (*a).to_owned()));
        App::of(&format!("{name} {}", arguments.join(" ")), argv)
    }

    /// A real program with the given command line; `@NAME` stands for a file of `tests/apps`.
    pub fn real(name: &str, argv: &[&str]) -> App {
        let expand = |word: &&str| match word.strip_prefix('@') {
            Some(file) => kit().app(file).to_string_lossy().into_owned(),
            None => (*word).to_owned(),
        };
        App::of(name, argv.iter().map(expand).collect())
    }

    fn of(name: &str, argv: Vec<String>) -> App {
        App {
            name: name.trim().to_owned(),
            argv,
            stdin: None,
            results: Vec::new(),
            prepare: None,
            emptied: None,
            refuses_root: false,
            renames: false,
            alone: false,
            options: &[],
        }
    }

    /// With files of its own to compare.
    pub fn leaving(mut self, results: &[&str]) -> App {
        self.results = results.iter().map(|r| (*r).to_owned()).collect();
        self
    }

    /// With shell commands that prepare `work/`.
    pub fn prepared(mut self, prepare: &str) -> App {
        self.prepare = Some(prepare.to_owned());
        self
    }

    /// With an undisturbed run that is not root's either.
    pub fn refusing_root(mut self) -> App {
        self.refuses_root = true;
        self
    }

    /// With files that are renamed when they are done, or folders that are removed at the end.
    pub fn renaming(mut self) -> App {
        self.renames = true;
        self
    }

    /// With options of `holdfast run`.
    pub fn with(mut self, options: &'static [&'static str]) -> App {
        self.options = options;
        self
    }

    /// With standard input from a file that `prepare` makes.
    pub fn reading(mut self, stdin: &str, prepare: &str) -> App {
        self.stdin = Some(stdin.to_owned());
        self.prepare = Some(prepare.to_owned());
        self
    }

    /// The command line as slices.
    pub fn words(&self) -> Vec<&str> {
        self.argv.iter().map(String::as_str).collect()
    }

    /// Makes what the program needs in `work/` of the bed.
    pub fn prepare(&self, bed: &Bed) -> Result<()> {
        let Some(script) = &self.prepare else { return Ok(()) };
        let mut command = bed.command(Path::new("/bin/sh"));
        command.args(["-ec", script]);
        bed.output(command, PATIENCE)?.success().with_context(|| format!("preparing {}", self.name))?;
        Ok(())
    }

    /// Empties what is to be gone at a restart.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn empty(&self, bed: &Bed) -> Result<()> {
        let Some(folder) = self.emptied.map(|name| bed.work().join(name)) else { return Ok(()) };
        for entry in fs::read_dir(&folder).with_context(|| format!("emptying {}", folder.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Standard input of the program in that bed.
    pub fn input(&self, bed: &Bed) -> Result<Stdio> {
        Ok(match &self.stdin {
            Some(name) => fs::File::open(bed.work().join(name))?.into(),
            None => Stdio::null(),
        })
    }
}

/// What a program leaves behind.
#[derive(Clone, PartialEq, Eq)]
pub struct Results {
    /// Exit status as a shell shows it.
    pub code: i32,
    /// Standard output first, then its files, by name.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Results {
    /// Reads them from `work/`.
    pub fn read(app: &App, bed: &Bed, code: i32) -> Result<Results> {
        let names = std::iter::once("out").chain(app.results.iter().map(String::as_str));
        let read = |name: &str| {
            let path = bed.work().join(name);
            Ok((name.to_owned(), fs::read(&path).with_context(|| format!("reading {}", path.display()))?))
        };
        Ok(Results { code, files: names.map(read).collect::<Result<_>>()? })
    }

    /// An error that says where the first difference is.
    pub fn check(&self, expected: &Results) -> Result<()> {
        for ((name, found), (_, right)) in self.files.iter().zip(&expected.files) {
            if found == right {
                continue;
            }
            let same = found.iter().zip(right).take_while(|(a, b)| a == b).count();
            let around = |bytes: &[u8]| {
                let start =
                    bytes[..same.min(bytes.len())].iter().rposition(|&b| b == b'\n').map_or(0, |p| p + 1);
                let end = bytes.len().min(same + 200);
                String::from_utf8_lossy(&bytes[start.max(same.saturating_sub(200)).min(end)..end])
                    .into_owned()
            };
            bail!(
                "{name} differs from the undisturbed run at byte {same} ({} bytes, not {}), exit status {}\n\
                 --- found\n{}\n--- undisturbed\n{}",
                found.len(),
                right.len(),
                self.code,
                around(found),
                around(right)
            );
        }
        ensure!(self.code == expected.code, "exit status {} instead of {}", self.code, expected.code);
        Ok(())
    }
}

/// An undisturbed run without Holdfast: what it leaves and how long it takes.
pub struct Reference {
    /// What is right.
    pub results: Results,
    /// Duration of the run.
    pub took: Duration,
}

/// Status by which a program of `tests/programs` says that this machine does not have what it is about.
pub const NOT_HERE: i32 = 77;

/// This machine does not have what a program is about; what the program says of it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotHere(String);

/// The undisturbed result of a program; run once per test process.
pub fn reference(app: &App) -> Result<Arc<Reference>> {
    type Slot = Arc<Mutex<Option<Arc<Reference>>>>;
    /// What it does, whatever its name.
    type Key = (Vec<String>, Option<String>);
    static CACHE: OnceLock<Mutex<HashMap<Key, Slot>>> = OnceLock::new();
    let key = (app.argv.clone(), app.prepare.clone());
    let mut cache = CACHE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let slot = Arc::clone(cache.entry(key).or_default());
    drop(cache);
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = &*slot {
        return Ok(Arc::clone(known));
    }
    let fresh = Arc::new(undisturbed(app)?);
    *slot = Some(Arc::clone(&fresh));
    Ok(fresh)
}

/// Of an undisturbed run; the longest take 20 s on an idle machine.
const LIMIT: Duration = Duration::from_secs(600);

fn undisturbed(app: &App) -> Result<Reference> {
    let user = if am_root() && !app.refuses_root { User::Root } else { User::Ordinary };
    let bed = Bed::lasting(user, LIMIT * 2).context("a bed for the undisturbed run")?;
    app.prepare(&bed)?;
    let (program, arguments) = app.argv.split_first().context("a command line")?;
    let mut command = bed.command(&PathBuf::from(program));
    command.args(arguments).stdin(app.input(&bed)?).stdout(fs::File::create(bed.work().join("out"))?);
    command.stderr(fs::File::create(bed.work().join("err"))?);
    let start = Instant::now();
    let mut child =
        command.spawn().with_context(|| format!("starting {program}: run scripts/install-deps.sh"))?;
    let code = shell_code(wait(&mut child, LIMIT)?);
    let took = start.elapsed();
    if code == NOT_HERE {
        bail!(NotHere(bed.text("out").trim().to_owned()));
    }
    ensure!(code == 0, "{}: fails without Holdfast too, status {code}: {}", app.name, bed.text("err"));
    Ok(Reference { results: Results::read(app, &bed, code)?, took })
}
