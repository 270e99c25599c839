//! A store: a folder of one user with a folder for each job.
//!
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

    /// Names of all jobs, sorted.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn jobs(&self) -> Result<Vec<String>, StoreError> {
        let failed = StoreError::io("list", &self.root);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Ok(name) = entry.file_name().into_string()
                && check_name(&name).is_ok()
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
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
        let dir = self.root.join(name);
        files::make_folder(&dir)?;
        files::sync_folder(&self.root)?;
        Job::new(name, dir)
    }
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
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if (1..=100).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(allowed) {
        Ok(())
    } else {
        Err(StoreError::BadName { name: name.to_owned() })
    }
}
