//! What a restart says of files that were written after its image and that it leaves as they are
//! (`process::rebuild::newer_files` finds them).

use crate::last_run::LastRun;
use holdfast_image::Epoch;
use holdfast_image::bytes::Name;
use holdfast_image::record::ProcessRecord;
use holdfast_process::rebuild::newer_files::{self, NewerFiles};
use holdfast_tiers::Job;
use std::fs;
use std::path::Path;

/// Names in the note.
const NAMED: usize = 5;

/// The note, before anything of the program runs.
pub fn note(record: &ProcessRecord, job: &Job, epoch: Epoch) -> Option<String> {
    let until_ns = LastRun::read(job).and_then(|run| run.ended).map(|ended| ended.at_ns);
    let own: Vec<fs::Metadata> =
        [0, 1, 2].iter().filter_map(|fd| fs::metadata(format!("/proc/self/fd/{fd}")).ok()).collect();
    let store = job.dir().parent().map(|store| fs::canonicalize(store).unwrap_or_else(|_| store.to_owned()));
    let found = newer_files::find(record, until_ns, store.as_deref().unwrap_or(Path::new("/")), &own);
    words(&found, epoch, record.cwd.as_path())
}

/// Names below the working folder are shown from there.
fn words(found: &NewerFiles, epoch: Epoch, cwd: &Path) -> Option<String> {
    let shown = |path: &Path| Name::from(path.strip_prefix(cwd).unwrap_or(path)).to_string();
    let named: Vec<String> = found.paths.iter().take(NAMED).map(|path| shown(path)).collect();
    if named.is_empty() {
        return found.is_part.then(|| {
            format!(
                "there are too many files to say which of them were written after image {epoch} (docs/files.md)"
            )
        });
    }
    let more = match (found.paths.len() - named.len(), found.is_part) {
        (0, false) => String::new(),
        (0, true) => " (there are too many files to look at all)".to_owned(),
        (more, false) => format!(" and {more} more"),
        (more, true) => format!(" and {more} more (there are too many files to look at all)"),
    };
    Some(format!(
        "written after image {epoch} and left as they are: {}{more}; what the program did to them since it does once \
         more (docs/files.md)",
        named.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_few_are_named_and_the_rest_is_counted() {
        let of = |count: usize, is_part| NewerFiles {
            paths: (0..count).map(|number| PathBuf::from(format!("/w/f{number}"))).collect(),
            is_part,
        };
        let said = |count, is_part| words(&of(count, is_part), Epoch(3), Path::new("/w")).unwrap_or_default();
        assert_eq!(said(0, false), "");
        assert!(said(0, true).starts_with("there are too many files to say which"));
        assert!(said(2, false).starts_with("written after image 3 and left as they are: f0, f1; what"));
        assert!(said(7, false).contains("f4 and 2 more; what"));
        assert!(said(5, true).contains("f4 (there are too many"));
    }
}
