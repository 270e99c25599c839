//! The file with the key of a server of streams: 64 hexadecimal digits. Who has it may read what is exported.
//!
//! Made by `serve` where there is none; copied by the user to who is to read. Invariant: it is its user's, and no other
//! user may read it. Fails by: an error that names the file.

use crate::exit::{Exit, Failure};
use crate::gang::key::Key;
use crate::{file_system, report};
use std::io::{self, Read};
use std::path::Path;

/// Longer ones are no keys: bytes.
const LONGEST: u64 = 4096;

/// Why there is no new one.
fn not_made(path: &Path, error: &io::Error) -> Failure {
    let (shown, exit) = match error.kind() {
        io::ErrorKind::NotFound => (path.parent().unwrap_or(path).display(), Exit::NotFound),
        io::ErrorKind::PermissionDenied => (path.display(), Exit::Permission),
        _ => (path.display(), Exit::CannotCreate),
    };
    let why = format!("the key {} cannot be made: {shown}: {error}", path.display());
    Failure::new(exit, format!("{why}; name a file in a folder where you may write with --key"))
}

/// The key in a file. `make`: a new one, if there is no file.
///
/// # Errors
/// See the head of the file.
pub fn read(path: &Path, make: bool) -> Result<Key, Failure> {
    let shown = path.display();
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && make => {
            let key = Key::new().map_err(|error| Failure::system("making a key", &error))?;
            file_system::write_own(path, format!("{}\n", key.text()).as_bytes())
                .map_err(|error| not_made(path, &error))?;
            report::warn(&format!("{shown} was made: who has a copy of it may read what is exported"));
            return Ok(key);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let what = format!("{shown} is not there: copy it from the host of `holdfast serve --listen`");
            return Err(Failure::new(Exit::NotFound, what));
        }
        Err(error) => return Err(Failure::system(format_args!("looking at {shown}"), &error)),
        Ok(_) => {}
    }
    let Some(file) = file_system::open_own(path) else {
        let what = format!("{shown} is not a file of yours that you alone can read: chmod 600 {shown}");
        return Err(Failure::new(Exit::Permission, what));
    };
    let mut text = String::new();
    file.take(LONGEST)
        .read_to_string(&mut text)
        .map_err(|error| Failure::system(format_args!("reading {shown}"), &error))?;
    Key::read(text.trim()).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("{shown} is no key: 64 hexadecimal digits are asked for"))
    })
}
