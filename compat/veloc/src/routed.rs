//! Files of the program's own: it writes and reads them in a folder of ours, and they become objects of a version.
//!
//! Invariants: a folder is of one rank of one checkpoint name, and is empty when a checkpoint or restart begins: what a
//! killed process has left there is removed. It is the user's alone.

use holdfast_objects::client::{Client, Error};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Longest path that fits where programs want it, with its zero.
const ROOM: usize = 1024;
/// Longest key of an object.
const KEY: usize = 255;
/// The file of a version that `holdfast import --veloc --file-mode` has made.
const IMPORTED: &str = "file:";

/// The folder, and what is routed into it.
#[derive(Debug)]
pub struct Routed {
    folder: PathBuf,
    files: Vec<(String, PathBuf)>,
}

fn failed(call: &'static str) -> impl Fn(io::Error) -> Error {
    move |why| Error::System { call, why }
}

/// The object that a file becomes. Names that are too long keep their end, and a sum of all of them.
fn key(original: &str) -> String {
    let key = format!("file:{original}");
    if key.len() <= KEY {
        return key;
    }
    let sum = original
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let from = (original.len() - 200..).find(|at| original.is_char_boundary(*at)).unwrap_or(original.len());
    format!("file:{sum:016x}:{}", original.get(from..).unwrap_or(""))
}

/// The object that a version has for a file. One that was imported from VELOC has one file, whatever it was called: as
/// with VELOC itself.
fn stored_key(original: &str, client: &Client) -> String {
    let own = key(original);
    if client.size(&own).is_none() && client.size(IMPORTED).is_some() { IMPORTED.to_owned() } else { own }
}

impl Routed {
    /// None yet.
    pub fn new(folder: PathBuf) -> Routed {
        Routed { folder, files: Vec::new() }
    }

    /// Where the program finds, or puts, what it calls `original`. `from`: the version that has it already.
    ///
    /// # Errors
    /// The folder cannot be made; the version has no such file.
    pub fn route(&mut self, original: &str, from: Option<&Client>) -> Result<PathBuf, Error> {
        if let Some((_, path)) = self.files.iter().find(|(known, _)| known == original) {
            return Ok(path.clone());
        }
        if self.files.is_empty() {
            self.clear()?;
            DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed("mkdir"))?;
        }
        let name = Path::new(original).file_name().and_then(|name| name.to_str()).unwrap_or("file");
        let mut path = self.folder.join(format!("{}-{name}", self.files.len()));
        if path.as_os_str().len() >= ROOM || name.len() > 200 {
            path = self.folder.join(self.files.len().to_string());
        }
        if path.as_os_str().len() >= ROOM {
            return Err(Error::Argument(format!(
                "the path of scratch is too long for files: {}",
                path.display()
            )));
        }
        if let Some(client) = from {
            let mut file = File::create(&path).map_err(failed("creating a file in scratch"))?;
            client.copy_to(&stored_key(original, client), &mut file)?;
        }
        self.files.push((original.to_owned(), path.clone()));
        Ok(path)
    }

    /// Puts all files into the version that is being put.
    ///
    /// # Errors
    /// The program has not written one.
    pub fn put(&self, client: &mut Client) -> Result<(), Error> {
        self.files.iter().try_for_each(|(original, path)| {
            let file = File::open(path).map_err(|error| {
                let path = path.display();
                Error::Argument(format!(
                    "{original} was to be written at {path}, which cannot be read ({error})"
                ))
            })?;
            client.add_file(&key(original), &file)
        })
    }

    fn clear(&self) -> Result<(), Error> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("removing files in scratch")(error))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        if !self.files.is_empty() {
            // What stays is removed by the next checkpoint.
            let _ = self.clear();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn files_have_a_place_of_their_own_and_what_was_left_goes() {
        let folder = std::env::temp_dir().join(format!("holdfast-routed-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("0-old"), "left").unwrap();
        let mut routed = Routed::new(folder.clone());
        let first = routed.route("/a/ckpt.dat", None).unwrap();
        let second = routed.route("/b/ckpt.dat", None).unwrap();
        assert_ne!(first, second);
        assert_eq!(routed.route("/a/ckpt.dat", None).unwrap(), first);
        fs::write(&first, "of the program").unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        drop(routed);
        assert!(!folder.exists());
        fs::create_dir_all(&folder).unwrap();
        drop(Routed::new(folder.clone()));
        assert!(folder.exists(), "one that routed nothing removes nothing");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn long_names_are_keys_that_differ() {
        let long = |end: &str| format!("/{}{end}", "ä".repeat(300));
        let keys = [key("a"), key(&long("1")), key(&long("2")), key(&format!("x{}", long("1")))];
        assert!(keys.iter().all(|key| key.len() <= KEY), "{keys:?}");
        assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    }
}
