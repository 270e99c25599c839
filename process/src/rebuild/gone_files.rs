//! Files of the program that are not where they were, in few lines: where a whole folder was moved, one of it.
//!
//! Filled and told by [`super::preflight`]. Invariant: what cannot be looked at is not gone; its error is told by who
//! looks at it next.

use holdfast_image::bytes::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// See the head of the file.
#[derive(Debug, Default)]
pub struct GoneFiles(BTreeSet<PathBuf>);

impl GoneFiles {
    /// Whether nothing has this name; then it is told.
    pub fn takes(&mut self, path: &Name) -> bool {
        let is_gone = is_gone(path.as_path());
        if is_gone {
            self.0.insert(path.as_path().to_owned());
        }
        is_gone
    }

    /// A line for each folder that is gone, or from which files are.
    pub fn lines(&self) -> Vec<String> {
        let mut folders: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
        for path in &self.0 {
            let above = path.ancestors().skip(1);
            let first = above.clone().take_while(|folder| is_gone(folder)).last().or_else(|| path.parent());
            folders.entry(first.unwrap_or(path)).or_default().push(path);
        }
        folders.into_iter().map(|(folder, files)| line(folder, &files)).collect()
    }
}

fn is_gone(path: &Path) -> bool {
    fs::metadata(path)
        .is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
}

fn line(folder: &Path, files: &[&Path]) -> String {
    /// More are counted.
    const NAMED: usize = 5;
    let has_gone = is_gone(folder);
    if let ([file], false) = (files, has_gone) {
        return format!(
            "{}: the program has this file, and it is gone; put it back, or give its new path (restart \
             --map OLD=NEW)",
            file.display()
        );
    }
    let names: Vec<String> = files
        .iter()
        .take(NAMED)
        .map(|file| file.strip_prefix(folder).unwrap_or(file).display().to_string())
        .collect();
    let more = files.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (folder, names) = (folder.display(), names.join(", "));
    match has_gone {
        true => format!(
            "{folder}: this folder is gone, and the program has files in it ({names}{more}); put it back, \
             or give its new path (restart --map OLD=NEW)"
        ),
        false => format!(
            "{folder}: files of the program are gone from here ({names}{more}); put them back, or give \
             their new paths (restart --map OLD=NEW)"
        ),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_folder() {
        let folder = std::env::temp_dir().join(format!("gone-files-{}", std::process::id()));
        fs::create_dir_all(folder.join("lib")).unwrap();
        fs::write(folder.join("lib/there"), "").unwrap();
        let mut gone = GoneFiles::default();
        let mut takes = |name: String| gone.takes(&Name::from(folder.join(name).as_path()));
        assert!(!takes("lib/there".into()) && takes("lib/a.so".into()) && takes("one".into()));
        assert!((0..7).all(|number| takes(format!("share/x/{number}"))));
        assert!(takes("lib/b.so".into()) && takes("lib/there/below".into()));
        let (lines, at) = (gone.lines(), folder.display());
        let expected = [
            format!("{at}/one: the program has this file, and it is gone; put it back"),
            format!("{at}/lib: files of the program are gone from here (a.so, b.so); put them back"),
            format!("{at}/lib/there/below: the program has this file, and it is gone; put"),
            format!(
                "{at}/share: this folder is gone, and the program has files in it (x/0, x/1, x/2, x/3, x/4 and 2 \
                 more); put it back"
            ),
        ];
        assert_eq!(lines.len(), 4, "{lines:?}");
        for (line, begin) in lines.iter().zip(expected) {
            assert!(line.starts_with(&begin), "{line}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
