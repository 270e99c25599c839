//! A store: a folder of one user with a folder for each job, and one for each rank of a set of objects.
//!
//! ```text
//! STORE/JOB/                what a job of `holdfast run` has
//! STORE/objects/SET/RANK/   what a rank of a program has put itself: a job whose name is "objects/SET/RANK"
//! STORE/.gangs/GANG/        what the jobs GANG.0, GANG.1, ... of several hosts have in common: no job
//! DIR/GANG/                 the same where each host has a store of its own (`--gang-folder DIR`)
//! ```
//! Called by every command. Invariants: the store and its jobs belong to the caller and no other user may write to
//! them, because what is read from them becomes a running program. Root puts none into the home folder of another user
//! (`sudo -E`, `su` without `-`) unless it was named: the folders above it would be root's there.

use crate::{Job, StoreError, files, lock};
use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A store that was opened and checked.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// `$HOLDFAST_STORE`, else `$XDG_STATE_HOME/holdfast`, else `~/.local/state/holdfast`.
    pub fn default_root() -> PathBuf {
        usual_root().1
    }

    /// Opens the store there.
    ///
    /// # Errors
    /// As [`Store::open`]; it would be in another user's home folder.
    pub fn open_default() -> Result<Store, StoreError> {
        let (home, root) = usual_root();
        if let Some(home) = home.filter(|_| lock::euid() == 0) {
            let above = root.ancestors().skip(1).take_while(|one| one.starts_with(&home));
            let anothers = above
                .filter_map(|one| Some((one, fs::metadata(one).ok()?.uid())))
                .find(|(_, user)| *user != 0);
            if let Some((path, user)) = anothers {
                let why = format!("it belongs to uid {user}, you are root (sudo -H, su -, or --store DIR)");
                return Err(StoreError::Permissions { path: path.to_owned(), why });
            }
        }
        Store::open(&root)
    }

    /// Opens the store; makes it, with mode 0700, if it is not there.
    ///
    /// # Errors
    /// It cannot be made, belongs to another uid, or others may write to it.
    pub fn open(root: &Path) -> Result<Store, StoreError> {
        let root = std::path::absolute(root).map_err(StoreError::io("find", root))?;
        make(&root).map_err(|error| match error {
            StoreError::Io { call: "create", source, .. } => {
                StoreError::NoStore { path: root.clone(), source }
            }
            other => other,
        })?;
        Ok(Store { root })
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Names of all jobs, ranks of sets of objects among them, sorted.
    ///
    /// # Errors
    /// A folder cannot be listed.
    pub fn jobs(&self) -> Result<Vec<String>, StoreError> {
        let mut names = folders(&self.root)?;
        names.retain(|name| check_name(name).is_ok() && (name != OBJECTS || self.is_old_job(name)));
        for set in self.sets()? {
            names.extend(self.ranks(&set)?.into_iter().map(|rank| rank_name(&set, rank)));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Names of all sets of objects, sorted.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn sets(&self) -> Result<Vec<String>, StoreError> {
        let mut sets = folders(&self.root.join(OBJECTS))?;
        sets.retain(|set| check_part(set));
        sets.sort_unstable();
        Ok(sets)
    }

    /// The ranks that have a folder in a set of objects, ascending.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn ranks(&self, set: &str) -> Result<Vec<u32>, StoreError> {
        let names = folders(&self.root.join(OBJECTS).join(set))?;
        let mut ranks: Vec<u32> = names.iter().filter_map(|name| rank_of(name)).collect();
        ranks.sort_unstable();
        Ok(ranks)
    }

    /// The folder of all sets of objects, made if it is not there.
    ///
    /// # Errors
    /// It cannot be made, or is not ours alone.
    pub fn objects_folder(&self) -> Result<PathBuf, StoreError> {
        let folder = self.root.join(OBJECTS);
        files::make_folder(&folder)?;
        Ok(folder)
    }

    /// Names of all gangs, sorted.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn gangs(&self) -> Result<Vec<String>, StoreError> {
        let mut gangs = folders(&self.root.join(GANGS))?;
        gangs.retain(|gang| check_part(gang));
        gangs.sort_unstable();
        Ok(gangs)
    }

    /// The folder of a gang, if there is one of this name.
    ///
    /// # Errors
    /// It cannot be looked at, or is not ours alone.
    pub fn gang_folder(&self, gang: &str) -> Result<Option<PathBuf>, StoreError> {
        let folder = self.root.join(GANGS).join(gang);
        if !check_part(gang) {
            return Ok(None);
        }
        match fs::symlink_metadata(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(StoreError::io("look at", &folder))?,
        };
        files::check_folder(&self.root.join(GANGS))?;
        files::check_folder(&folder)?;
        Ok(Some(folder))
    }

    /// The same, made if it is not there.
    ///
    /// # Errors
    /// The name is no job name; it cannot be made, or is not ours alone.
    pub fn make_gang_folder(&self, gang: &str) -> Result<PathBuf, StoreError> {
        if !check_part(gang) {
            return Err(StoreError::BadName { name: gang.to_owned() });
        }
        let (all, folder) = (self.root.join(GANGS), self.root.join(GANGS).join(gang));
        files::make_folder(&all)?;
        files::sync_folder(&self.root)?;
        files::make_folder(&folder)?;
        files::sync_folder(&all)?;
        Ok(folder)
    }

    /// The folder of a gang in one that its hosts share, which is no store (`--gang-folder`); made if it is not there,
    /// if so asked.
    ///
    /// # Errors
    /// The shared folder is not there; the name is no job name; one of both is not ours alone, or cannot be made.
    pub fn shared_gang_folder(shared: &Path, gang: &str, make: bool) -> Result<Option<PathBuf>, StoreError> {
        if !check_part(gang) {
            return Err(StoreError::BadName { name: gang.to_owned() });
        }
        let folder = shared.join(gang);
        if make {
            self::make(shared)?;
            files::make_folder(&folder)?;
            files::sync_folder(shared)?;
        }
        files::check_folder(shared)?;
        match fs::symlink_metadata(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(StoreError::io("look at", &folder))?,
        };
        files::check_folder(&folder)?;
        Ok(Some(folder))
    }

    /// Whether a job was called so before the name meant something.
    fn is_old_job(&self, name: &str) -> bool {
        self.root.join(name).join("job.json").try_exists().unwrap_or(true)
    }

    /// An existing job.
    ///
    /// # Errors
    /// The name is no job name, there is no such job, it cannot be looked at, or others may write to its folder.
    pub fn job(&self, name: &str) -> Result<Job, StoreError> {
        check_name(name)?;
        let dir = self.root.join(name);
        match fs::metadata(&dir) {
            Ok(meta) if meta.is_dir() => {}
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::io("look at", &dir)(error));
            }
            _ => return Err(StoreError::NotAJob { name: name.to_owned(), store: self.root.clone() }),
        }
        files::check_folder(&dir)?;
        Job::new(name, dir)
    }

    /// The job, made if it is not there.
    ///
    /// # Errors
    /// The name is no job name, or its folder cannot be made or is not ours alone.
    pub fn create_job(&self, name: &str) -> Result<Job, StoreError> {
        check_name(name)?;
        if name == OBJECTS && !self.is_old_job(name) {
            return Err(StoreError::BadName { name: name.to_owned() });
        }
        let dir = self.root.join(name);
        // The folders above that of a rank.
        let mut above: Vec<&Path> = dir.ancestors().skip(1).take_while(|path| *path != self.root).collect();
        while let Some(folder) = above.pop() {
            files::make_folder(folder)?;
            files::sync_folder(folder.parent().unwrap_or(&self.root))?;
        }
        files::make_folder(&dir)?;
        files::sync_folder(dir.parent().unwrap_or(&self.root))?;
        Job::new(name, dir)
    }
}

/// The folder of gangs: no job can be called so.
const GANGS: &str = ".gangs";

/// The folder of sets of objects.
const OBJECTS: &str = "objects";

/// The name of the job of a rank of a set of objects.
pub fn rank_name(set: &str, rank: u32) -> String {
    format!("{OBJECTS}/{set}/{rank}")
}

/// The set and the rank, if a job's name is that of one.
pub fn parse_rank(name: &str) -> Option<(&str, u32)> {
    let (set, rank) = name.strip_prefix(OBJECTS)?.strip_prefix('/')?.split_once('/')?;
    check_part(set).then_some((set, rank_of(rank)?))
}

/// A number, written as numbers are.
fn rank_of(name: &str) -> Option<u32> {
    name.parse().ok().filter(|rank: &u32| rank.to_string() == name)
}

/// Names of the folders in one; none, if it is not there.
fn folders(folder: &Path) -> Result<Vec<String>, StoreError> {
    let failed = StoreError::io("list", folder);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(&failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(&failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// The store that is used where none is named on the command line, and the home folder that it is in, if it is.
fn usual_root() -> (Option<PathBuf>, PathBuf) {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(root) = variable("HOLDFAST_STORE") {
        return (None, root);
    }
    // The XDG base directory specification: a relative path in such a variable is to be ignored.
    if let Some(state) = variable("XDG_STATE_HOME").filter(|path| path.is_absolute()) {
        let root = state.join("holdfast");
        return (Some(state), root);
    }
    match env::home_dir().filter(|home| home.is_absolute()) {
        Some(home) => {
            let root = home.join(".local/state/holdfast");
            (Some(home), root)
        }
        None => (None, PathBuf::from(format!("/var/tmp/holdfast-{}", lock::euid()))),
    }
}

/// Makes the folder of a store, and those above it, where they are not there.
fn make(root: &Path) -> Result<(), StoreError> {
    if let Some(parent) = root.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(StoreError::write("create", parent, 0))?;
    }
    files::make_folder(root)
}

fn check_name(name: &str) -> Result<(), StoreError> {
    if check_part(name) || parse_rank(name).is_some() {
        Ok(())
    } else {
        Err(StoreError::BadName { name: name.to_owned() })
    }
}

fn check_part(name: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    (1..=100).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(allowed)
}
