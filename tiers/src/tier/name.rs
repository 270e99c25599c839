//! Names of blobs: the only paths that reach a tier.
//!
//! Invariant: a name that exists has no "..", no empty part and no character that means something to a shell, a file
//! system or an address of an object, so that no tier has to look at it again.

use std::fmt;

/// Most bytes of a part of a name: every file system takes them, with a suffix of ours.
const MAX_PART: usize = 200;
/// Most parts: folders and file.
const MAX_PARTS: usize = 6;

/// Name of a blob in a tier: one to six parts (folders, then the blob) with '/' between them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlobName(String);

impl BlobName {
    /// Checks a name: parts of letters, digits, '.', '_' and '-', not beginning with '.' or '-'.
    pub fn new(name: &str) -> Option<BlobName> {
        let parts = name.split('/');
        (parts.clone().count() <= MAX_PARTS && parts.clone().all(is_part)).then(|| BlobName(name.to_owned()))
    }

    /// The blob `file` in `folder` ("" is the uppermost).
    pub fn within(folder: &str, file: &str) -> Option<BlobName> {
        if folder.is_empty() { BlobName::new(file) } else { BlobName::new(&format!("{folder}/{file}")) }
    }

    /// Whether blobs can be in a folder of this name ("" is the uppermost).
    pub fn is_folder(folder: &str) -> bool {
        folder.is_empty() || BlobName::new(folder).is_some()
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What is before the last '/', or "".
    pub fn folder(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// What is after the last '/'.
    pub fn file(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(_, file)| file)
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

fn is_part(part: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    (1..=MAX_PART).contains(&part.len()) && !part.starts_with(['.', '-']) && part.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_names_exist() {
        for name in ["segment-000001-000", "sim/manifest-000002", "a/b/c/d/e/f", "x.y_z"] {
            assert_eq!(BlobName::new(name).as_ref().map(BlobName::as_str), Some(name));
        }
        let long = "x".repeat(MAX_PART + 1);
        for name in [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "..",
            "a/../b",
            ".tmp",
            "-rf",
            "a b",
            "a\0",
            "a/b/c/d/e/f/g",
            &long,
            "ä",
        ] {
            assert_eq!(BlobName::new(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_name_is_a_folder_and_a_file() {
        let parts =
            |name: &str| BlobName::new(name).map(|name| (name.folder().to_owned(), name.file().to_owned()));
        assert_eq!(parts("sim/x"), Some(("sim".into(), "x".into())));
        assert_eq!(parts("x"), Some((String::new(), "x".into())));
        assert_eq!(BlobName::within("", "x"), BlobName::new("x"));
        assert_eq!(BlobName::within("sim", "x"), BlobName::new("sim/x"));
        assert_eq!(BlobName::within("sim", "../x"), None);
    }
}
