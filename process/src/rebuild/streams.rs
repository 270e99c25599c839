//! Standard streams at a restart: which of the program's become those of `holdfast restart`, and which go on in their
//! files. The rules are in docs/files.md.
//!
//! [`plan`] is called by the front, before anything is made: it looks at the descriptors that it has and at the files
//! of the record, and changes nothing. Both halves of a restart apply what it has found
//! ([`holdfast_image::streams::apply`]). What is written to by the restart itself or by the script that calls it is
//! never cut. How it fails: a file that cannot be opened is left for the restart's own stream, with a note.

use super::error::RebuildError;
use super::file_role::may_write;
use super::paths::Opener;
use crate::capture::identity::born_ns;
use crate::job::membership::ancestors;
use holdfast_image::bytes::Name;
use holdfast_image::record::{Description, Object, ProcessRecord};
use holdfast_image::streams::{STREAMS, Switch, Use, uses};
use holdfast_sys::attributes;
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

pub use holdfast_image::streams::apply;

/// What the user wants for streams that were files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wish {
    /// On in their files, unless they are redirected.
    #[default]
    Auto,
    /// On in their files.
    Keep,
    /// To the restart's own streams.
    Here,
}

/// What comes of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamPlan {
    /// For both halves.
    pub switches: Vec<Switch>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// What a descriptor of the restart leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Closed,
    Terminal,
    Null,
    File,
    Other,
}

/// A descriptor of the restart.
struct Own {
    kind: Kind,
    about: Option<Metadata>,
    path: Option<PathBuf>,
}

impl Own {
    fn look(number: i32, closed: bool) -> Own {
        let link = format!("/proc/self/fd/{number}");
        let about = fs::metadata(&link).ok().filter(|_| !closed);
        let kind = match &about {
            None => Kind::Closed,
            Some(_) if is_terminal(number) => Kind::Terminal,
            // Device 1:3 (Documentation/admin-guide/devices.txt).
            Some(about) if about.file_type().is_char_device() && about.rdev() == libc::makedev(1, 3) => {
                Kind::Null
            }
            Some(about) if about.is_file() => Kind::File,
            Some(_) => Kind::Other,
        };
        let path = if kind == Kind::File { fs::read_link(&link).ok() } else { None };
        Own { kind, about, path }
    }

    /// Whether it is the file of the record, or has its name now.
    fn is(&self, object: &Object) -> bool {
        let Object::Regular { path, now, .. } = object else { return false };
        let name = now.as_ref().unwrap_or(path).as_path();
        let found = self.about.as_ref().is_some_and(|about| is_file(object, about));
        self.kind == Kind::File && (found || self.path.as_deref() == Some(name))
    }
}

fn is_terminal(number: i32) -> bool {
    match number {
        0 => io::stdin().is_terminal(),
        1 => io::stdout().is_terminal(),
        _ => io::stderr().is_terminal(),
    }
}

/// Whether a file is the one of the record. An inode may be another's by now: the time of birth tells.
fn is_file(object: &Object, about: &Metadata) -> bool {
    let Object::Regular { device, inode, born_ns: born, .. } = object else { return false };
    (about.dev(), about.ino()) == (*device, *inode) && (born.is_none() || *born == born_ns(about))
}

/// The files that the processes which have started this one write to: the log of a script.
fn logs() -> Vec<Metadata> {
    let all =
        ancestors(attributes::own_pid()).flat_map(|pid| [1, 2].map(|fd| format!("/proc/{pid}/fd/{fd}")));
    all.filter_map(|path| fs::metadata(path).ok()).filter(Metadata::is_file).collect()
}

/// See the head of this file. `closed`: standard streams that this process was started without.
///
/// # Errors
/// The program reads and writes a file to which the restart itself writes.
pub fn plan(record: &ProcessRecord, closed: [bool; 3], wish: Wish) -> Result<StreamPlan, RebuildError> {
    let own = STREAMS.map(|number| Own::look(number, closed.get(number as usize) == Some(&true)));
    let mut planner = Planner { record, own, logs: logs(), wish, plan: StreamPlan::default() };
    let uses = uses(record);
    let mut seen = BTreeSet::new();
    for one in uses.iter().filter(|one| seen.insert((one.description, one.number))) {
        planner.stream(one);
    }
    planner.tell_of_output(&uses);
    let given: BTreeSet<u32> = uses.iter().map(|one| one.description).collect();
    for (index, description) in (0..).zip(&record.files.descriptions) {
        if !given.contains(&index) {
            planner.other(index, description)?;
        }
    }
    Ok(planner.plan)
}

struct Planner<'a> {
    record: &'a ProcessRecord,
    own: [Own; 3],
    logs: Vec<Metadata>,
    wish: Wish,
    plan: StreamPlan,
}

impl Planner<'_> {
    /// One stream of the program.
    fn stream(&mut self, one: &Use) {
        let Some(description) = self.record.files.descriptions.get(one.description as usize) else { return };
        let Some(own) = self.own.get(one.number as usize) else { return };
        let (object, number, closed) = (&description.object, one.number, own.kind == Kind::Closed);
        let is_log = self.logs.iter().any(|about| is_file(object, about));
        let switch = |from, whole| Switch { description: one.description, number: Some(number), from, whole };
        match object {
            Object::Inherited { was, .. } if closed => {
                let name = name(number);
                self.plan.notes.push(format!(
                    "the program's {name} was {was}, and this command's is closed: it leads to /dev/null"
                ));
            }
            Object::Device { .. } if self.is_here(object, number) => {
                self.plan.switches.push(switch(number, true));
            }
            Object::Regular { path, .. } => {
                let writes = may_write(description.flags);
                let joined = self.own_log(object).filter(|_| writes);
                if self.is_here(object, number) {
                    let whole = joined.is_some() || is_log || !writes;
                    self.plan.switches.push(switch(number, whole));
                } else if let Some(from) = joined {
                    self.plan.switches.push(switch(from, true));
                } else if is_log && writes && self.wish != Wish::Keep && !closed {
                    self.plan.switches.push(switch(number, true));
                } else if let Some(why) = self.obstacle(one, description) {
                    let name = name(number);
                    let instead = if closed {
                        "and as this command's is closed, it leads to /dev/null".to_owned()
                    } else {
                        format!("this command's {name} is used")
                    };
                    self.plan.notes.push(format!("the program's {name} was {path}, {why}; {instead}"));
                    self.plan.switches.push(switch(number, true));
                }
            }
            _ => {}
        }
    }

    /// Whether a stream that was a file goes to the restart's own. `/dev/null` is what shells give to commands in the
    /// background: it was not asked for.
    fn is_here(&self, object: &Object, number: i32) -> bool {
        let Some(own) = self.own.get(number as usize) else { return false };
        match (self.wish, own.kind) {
            (Wish::Here, _) => true,
            (Wish::Keep, _) | (_, Kind::Closed | Kind::Terminal | Kind::Null) => false,
            // The program has read a part of it.
            (Wish::Auto, _) => !(number == 0 && own.is(object)),
        }
    }

    /// The descriptor by which the restart itself writes to a file.
    fn own_log(&self, object: &Object) -> Option<i32> {
        STREAMS
            .into_iter()
            .skip(1)
            .find(|number| self.own.get(*number as usize).is_some_and(|own| own.is(object)))
    }

    /// Why a file cannot be opened again.
    fn obstacle(&self, one: &Use, description: &Description) -> Option<String> {
        let object = &description.object;
        let Object::Regular { path, now, .. } = object else { return None };
        // It will be put back, or made anew.
        if self.record.files.content_of(object).is_some() {
            return None;
        }
        let process = self.record.processes().nth(one.process)?;
        let opener = Opener::of(process);
        let failed = |error: &io::Error| match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => "which you may not open".to_owned(),
            _ => format!("which cannot be opened ({error})"),
        };
        // A folder that no other user may look into hides the reason.
        match fs::metadata(now.as_ref().unwrap_or(path).as_path()) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Some(failed(&error)),
            _ => {}
        }
        match opener.find(now.as_ref().unwrap_or(path), object.inode().as_ref()) {
            Err(error) => Some(format!("which cannot be used ({error})")),
            // Made anew, or refused: perhaps all files have moved (`restart --map`).
            Ok(None) => None,
            Ok(Some(found)) => opener.open_found(&found, description.flags).err().map(|error| failed(&error)),
        }
    }

    /// Where the first process's output goes on, if not where it went before.
    fn tell_of_output(&mut self, uses: &[Use]) {
        let moved: Vec<(i32, String, String)> = [1, 2]
            .into_iter()
            .filter_map(|number| {
                let is_own = |one: &&Use| one.process == 0 && one.number == number && one.fd == number;
                let (was, now) = self.way(uses.iter().find(is_own)?)?;
                (was != now).then_some((number, was, now))
            })
            .collect();
        let line = |what: &str, was: &str, now: &str| {
            format!("the program's {what} goes to {now} from now on; until the checkpoint it went to {was}")
        };
        match moved.as_slice() {
            [(_, was, now), (_, was_too, now_too)] if (was, now) == (was_too, now_too) => {
                self.plan.notes.push(line("output", was, now));
            }
            all => {
                let lines = all.iter().map(|(number, was, now)| line(name(*number), was, now));
                self.plan.notes.extend(lines);
            }
        }
    }

    /// Where a stream led to, and leads to now; none: what it is was said already, or cannot be told.
    fn way(&self, one: &Use) -> Option<(String, String)> {
        let description = self.record.files.descriptions.get(one.description as usize)?;
        let begin = format!("the program's {} was ", name(one.number));
        if !may_write(description.flags) || self.plan.notes.iter().any(|note| note.starts_with(&begin)) {
            return None;
        }
        let was = match &description.object {
            Object::Inherited { was, .. } => kind_of(was),
            Object::Regular { path, .. } | Object::Device { path } => path.to_string(),
            _ => return None,
        };
        let is_own =
            |switch: &&Switch| switch.description == one.description && switch.number == Some(one.number);
        let from = match self.plan.switches.iter().find(is_own) {
            Some(switch) => switch.from,
            None if matches!(description.object, Object::Inherited { .. }) => one.number,
            None => return None,
        };
        let own = self.own.get(usize::try_from(from).ok()?)?;
        let link = fs::read_link(format!("/proc/self/fd/{from}")).ok()?;
        (own.kind != Kind::Closed).then(|| (was, kind_of(&Name::from(link.as_path()))))
    }

    /// A file that the program has opened itself, and to which the restart writes.
    fn other(&mut self, index: u32, description: &Description) -> Result<(), RebuildError> {
        let Object::Regular { path, deleted_content: None, .. } = &description.object else { return Ok(()) };
        let Some(from) = self.own_log(&description.object).filter(|_| may_write(description.flags)) else {
            return Ok(());
        };
        if description.flags & libc::O_ACCMODE.cast_unsigned() != libc::O_WRONLY.cast_unsigned() {
            let what = format!(
                "the program reads and writes it, and this command's {} is written to it; write that elsewhere",
                name(from)
            );
            return Err(RebuildError::file(path, what));
        }
        self.plan.switches.push(Switch { description: index, number: None, from, whole: true });
        Ok(())
    }
}

/// What the name of an open file says that it is: terminals and pipes have numbers, which say nothing.
fn kind_of(name: &Name) -> String {
    let name = name.to_string();
    for (begin, kind) in [
        ("/dev/pts/", "a terminal"),
        ("/dev/tty", "a terminal"),
        ("pipe:", "a pipe"),
        ("socket:", "a socket"),
    ] {
        if name.starts_with(begin) {
            return kind.to_owned();
        }
    }
    name
}

fn name(number: i32) -> &'static str {
    match number {
        0 => "stdin",
        1 => "stdout",
        _ => "stderr",
    }
}
