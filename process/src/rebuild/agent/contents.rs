//! What was in files with names, put back: those that the image has (`run --save-files`). A journal that was not there
//! is put aside: it was left by what the restart undoes, and would be played back into what is put back here.
//!
//! Called by [`super::rebuild_job`] in the agent, when all else has succeeded. The files are there: what was gone
//! the first new process has made anew, empty ([`crate::rebuild::new_process`]). The rule of [`super::regular`]
//! holds: no byte is ever lost. A file that is what it was is not touched; one that has only grown is cut back; of
//! any other all that is in it now is kept first. What shared mappings cover has come with their pages. Invariant:
//! the record was checked. How it fails: an error names the file; those before it are put back.

use super::regular;
use super::saved_files::keep_tail;
use super::taken_files::TakenFiles;
use crate::capture::open_file;
use crate::rebuild::error::RebuildError;
use crate::rebuild::file_role::may_write;
use crate::rebuild::paths::{self, Opener, Place, explain};
use holdfast_image::bytes::Name;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{ExtentSource, PageError, PageProvider, PageRun};
use holdfast_image::record::{Description, FileContent, FileTable, Object};
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_sys::at;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes that are compared at once.
const PIECE_LEN: u64 = 1 << 20;

/// Puts all back. `pages`: those of the space of files ([`holdfast_image::address_space::FILES`]). One line per
/// file that was changed.
///
/// # Errors
/// Names the file.
pub fn put_back(
    table: &FileTable,
    files: &TakenFiles<'_>,
    pages: &dyn PageProvider,
    saved_dir: &Path,
) -> Result<Vec<String>, RebuildError> {
    let mut notes = Vec::new();
    refuse_parted(table)?;
    for content in &table.contents {
        if !content.absent.is_empty() {
            notes.extend(put_aside(content, &files.opener_beside(&content.path), saved_dir)?);
        }
        let failed = |error: io::Error| {
            RebuildError::file(&content.path, format!("it cannot be put back as it was: {error}"))
        };
        // Of a damaged image another exit status is due than of a file that is in the way.
        let unread = |error: PageError| match error {
            PageError::System(error) => failed(error),
            source => RebuildError::Pages { what: format!("restoring {}", content.path), source },
        };
        let file = open(table, content, files)?;
        let now = file.metadata().map_err(failed)?;
        let is_same = now.len() >= content.size && is_same(&file, content, pages).map_err(unread)?;
        if is_same && now.len() > content.size {
            notes.push(regular::put_back_length(&file, &content.path, (content.size, now.len()), saved_dir)?);
        } else if !is_same {
            let mut note = format!("{}: put back as it was, {} bytes", content.path, content.size);
            if now.len() > 0 {
                let kept = keep_tail(&file, &content.path, 0, saved_dir).map_err(failed)?;
                note.push_str(&format!("; what was there is kept in {}", kept.display()));
            }
            write(&file, content, pages).map_err(unread)?;
            notes.push(note);
        }
        if now.permissions().mode() & 0o7777 != content.mode {
            // Only its owner may, or root; for other users it stays as it is.
            let opener = files.opener_beside(&content.path);
            let _ =
                opener.act().and_then(|_acting| file.set_permissions(Permissions::from_mode(content.mode)));
        }
    }
    Ok(notes)
}

/// Puts aside what must not be there. One line per file.
fn put_aside(content: &FileContent, opener: &Opener, saved_dir: &Path) -> Result<Vec<String>, RebuildError> {
    let mut notes = Vec::new();
    for path in content.absent_paths() {
        let moved = put_one_aside(&path, opener, saved_dir).map_err(|error| {
            let what = format!(
                "it was not there at the checkpoint, belongs to {} and cannot be put aside: {}; move it elsewhere",
                content.path,
                explain(&error)
            );
            RebuildError::file(&path, what)
        })?;
        let Some(moved) = moved else { continue };
        let what = "it belongs to what the restart undoes";
        notes
            .push(format!("{path}: it was not there at the checkpoint; {what}; kept in {}", moved.display()));
    }
    Ok(notes)
}

/// Where it is kept, if it is there.
fn put_one_aside(path: &Name, opener: &Opener, saved_dir: &Path) -> io::Result<Option<PathBuf>> {
    let acting = opener.act()?;
    let (file, place) = match Place::of(path).and_then(|place| Ok((place.look()?, place))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let file = File::from(at::reopen(file.as_fd(), 0)?);
    // The folder of the job is not the process's.
    drop(acting);
    let kept = keep_tail(&file, path, 0, saved_dir)?;
    let _acting = opener.act()?;
    place.remove().map(|()| Some(kept))
}

/// Several names of one file that are names of several now: only one of them would be put back.
fn refuse_parted(table: &FileTable) -> Result<(), RebuildError> {
    let now = |path: &Name| fs::metadata(path.as_path()).map(|now| (now.dev(), now.ino())).ok();
    for description in &table.descriptions {
        let Object::Regular { path, .. } = &description.object else { continue };
        let Some(content) = table.content_of(&description.object).filter(|content| content.path != *path)
        else {
            continue;
        };
        if now(path) != now(&content.path) {
            let what = format!(
                "it was a hard link to {0} and is a separate file now; link it again (ln {0})",
                content.path
            );
            return Err(RebuildError::file(path, what));
        }
    }
    Ok(())
}

/// The file that a process will write, opened for reading and writing.
fn open(table: &FileTable, content: &FileContent, files: &TakenFiles<'_>) -> Result<File, RebuildError> {
    let is_path = |flags: u32| flags & libc::O_PATH.cast_unsigned() != 0;
    let is_it = |one: &&Description| one.object.is_saved_as(content) && !is_path(one.flags);
    let all = || table.descriptions.iter();
    let writer = all().position(|one| is_it(&one) && may_write(one.flags));
    let Some(index) = writer.or_else(|| all().position(|one| is_it(&one))) else {
        return files.at_path(content);
    };
    let file = files.take(index, &content.path)?;
    // What the process may write is written by its descriptor.
    let opener = files.opener_beside(&content.path);
    let acting = if writer.is_some() { Ok(None) } else { opener.act() };
    let opened = acting.and_then(|_acting| paths::reopen(file.as_fd(), libc::O_RDWR.cast_unsigned()));
    opened.map(File::from).map_err(|error| {
        RebuildError::file(&content.path, format!("it cannot be opened to be put back as it was: {error}"))
    })
}

/// Where the file has data, now or in the image: by offset in it. All else is zero here and there, and may be long.
fn data_ranges(file: &File, content: &FileContent, pages: &dyn PageProvider) -> io::Result<PageSet> {
    let whole = content.run();
    let in_file = |start: u64, end: u64| PageRun::between(Addr(start), Addr(end.next_multiple_of(PAGE_SIZE)));
    let now = open_file::data_of(file, file.metadata()?.len().min(content.size), None)?;
    let now = now.into_iter().map(|(from, to)| in_file(from, to));
    let is_here = |run: &PageRun| run.start < whole.end() && run.end() > whole.start;
    let stored = pages.extents().iter().filter(|extent| is_here(&extent.run));
    let was = stored.map(|extent| {
        let (from, to) = (extent.run.start.max(whole.start), extent.run.end().min(whole.end()));
        in_file(from.0 - whole.start.0, to.0 - whole.start.0)
    });
    let all: PageSet = now.chain(was).collect();
    Ok(all.difference(&content.covered.iter().copied().collect()))
}

/// All of it that is not zero now as before, piece by piece: offset, and the bytes that were there. `each` says
/// whether to go on.
fn pieces(
    file: &File,
    content: &FileContent,
    pages: &dyn PageProvider,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<bool>,
) -> Result<bool, PageError> {
    let mut bytes = Vec::new();
    for run in data_ranges(file, content, pages)?.runs() {
        let end = run.end().0.min(content.size);
        let mut from = run.start.0;
        while from < end {
            let to = (from + PIECE_LEN).min(end);
            bytes.clear();
            bytes.resize(usize::try_from((to - from).next_multiple_of(PAGE_SIZE)).unwrap_or(0), 0);
            fill(content.start.0 + from, &mut bytes, pages)?;
            if !each(from, &bytes[..usize::try_from(to - from).unwrap_or(0)])? {
                return Ok(false);
            }
            from = to;
        }
    }
    Ok(true)
}

/// What the image has from `start` on; the rest stays zero.
fn fill(start: u64, bytes: &mut [u8], pages: &dyn PageProvider) -> Result<(), PageError> {
    let end = start + bytes.len() as u64;
    let extents = pages.extents();
    let first = extents.partition_point(|extent| extent.run.end().0 <= start);
    for extent in extents.iter().skip(first).take_while(|extent| extent.run.start.0 < end) {
        let (from, to) = (extent.run.start.0.max(start), extent.run.end().0.min(end));
        if extent.source != ExtentSource::Zero {
            let at = |address: u64| usize::try_from(address - start).unwrap_or(0);
            pages.read(Addr(from), &mut bytes[at(from)..at(to)])?;
        }
    }
    Ok(())
}

fn is_same(file: &File, content: &FileContent, pages: &dyn PageProvider) -> Result<bool, PageError> {
    let mut now = Vec::new();
    pieces(file, content, pages, |from, was| {
        now.resize(was.len(), 0);
        file.read_exact_at(&mut now, from)?;
        Ok(now == was)
    })
}

/// Writes what differs.
fn write(file: &File, content: &FileContent, pages: &dyn PageProvider) -> Result<(), PageError> {
    file.set_len(content.size)?;
    let mut now = Vec::new();
    pieces(file, content, pages, |from, was| {
        now.resize(was.len(), 0);
        file.read_exact_at(&mut now, from)?;
        if now != was {
            file.write_all_at(was, from)?;
        }
        Ok(true)
    })?;
    Ok(file.sync_all()?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::job::Job;
    use crate::rebuild::testing::{Folder, record};
    use holdfast_image::PageCount;
    use holdfast_image::pages::Extent;
    use holdfast_image::testing::FakeImage;

    /// Pages from the fifth on: the first full of ones, a hole, and one that begins with a two.
    fn image() -> FakeImage {
        let extent = |page: u64| Extent {
            run: PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(1) },
            source: ExtentSource::Stored,
        };
        FakeImage::new(vec![extent(5), extent(7)], |start, page| {
            if start.0 == 5 * PAGE_SIZE {
                page.fill(1);
            } else {
                page.fill(0);
                page[0] = 2;
            }
        })
    }

    fn content() -> FileContent {
        FileContent {
            path: Name::from("/"),
            device: 0,
            inode: 0,
            size: 0,
            mode: 0o640,
            start: Addr(5 * PAGE_SIZE),
            covered: Vec::new(),
            absent: Vec::new(),
            owner: None,
            only_if_gone: false,
        }
    }

    /// With the files where they are: no process has them open.
    fn put_back(
        table: &FileTable,
        pages: &dyn PageProvider,
        saved: &Path,
    ) -> Result<Vec<String>, RebuildError> {
        let record = record(Vec::new());
        let take = |_| Err(io::ErrorKind::NotFound.into());
        super::put_back(table, &TakenFiles::new(&Job::new(&record), &take), pages, saved)
    }

    /// The descriptor of the process may append, and be for writing only.
    #[test]
    fn a_file_that_a_process_has_open_is_put_back_by_its_descriptor() {
        let folder = Folder::new("taken");
        let (path, saved) = (folder.0.join("elsewhere"), folder.0.join("saved"));
        fs::write(&path, b"short").unwrap();
        let object = Object::Regular {
            path: Name::from("/no/such"),
            position: 0,
            size: 0,
            device: 0,
            inode: 0,
            mtime_ns: 0,
            born_ns: None,
            now: None,
            mode: 0o640,
            owner: None,
            deleted_content: None,
        };
        let flags = (libc::O_WRONLY | libc::O_APPEND).cast_unsigned();
        let content = FileContent { path: Name::from("/no/such"), size: 2 * PAGE_SIZE + 1, ..content() };
        let descriptions =
            vec![Description { flags, object, locks: Vec::new(), owner: None, streams: 0, within: None }];
        let table = FileTable { contents: vec![content], descriptions, ..FileTable::default() };
        let record = record(Vec::new());
        let take = |_| File::options().append(true).open(&path);
        let job = Job::new(&record);
        super::put_back(&table, &TakenFiles::new(&job, &take), &image(), &saved).unwrap();
        let now = fs::read(&path).unwrap();
        assert_eq!((now.len(), now[0], now[8192]), (8193, 1, 2));
    }

    #[test]
    fn what_mappings_cover_is_left_and_what_was_not_there_is_put_aside() {
        let folder = Folder::new("beside");
        let (path, saved) = (folder.0.join("data"), folder.0.join("saved"));
        let journal = folder.0.join("data-journal");
        // The first page comes with a mapping; the second is a hole.
        let mut now = vec![7; 4096];
        now.extend([8; 4097]);
        fs::write(&path, &now).unwrap();
        fs::write(&journal, b"hot").unwrap();
        let content = FileContent {
            path: Name::from(path.as_path()),
            size: 2 * PAGE_SIZE + 1,
            covered: vec![PageRun::between(Addr(0), Addr(PAGE_SIZE))],
            absent: vec![Name::from("-journal"), Name::from("-wal")],
            ..content()
        };
        let table = FileTable { contents: vec![content], ..FileTable::default() };
        let notes = put_back(&table, &image(), &saved).unwrap();
        assert_eq!(notes.len(), 2, "{notes:?}");
        now[4096..].fill(0);
        now[8192] = 2;
        assert_eq!((fs::read(&path).unwrap(), journal.exists()), (now, false));
        let kept = fs::read_dir(&saved).unwrap().map(|one| fs::read(one.unwrap().path()).unwrap());
        assert!(kept.into_iter().any(|kept| kept == b"hot"));
        assert_eq!(put_back(&table, &image(), &saved).unwrap(), [""; 0]);
    }

    #[test]
    fn damage_of_the_image_is_not_taken_for_a_file_in_the_way() {
        let path = std::env::temp_dir().join(format!("damaged-content-{}", std::process::id()));
        fs::write(&path, [3; 4096]).unwrap();
        let (name, start) = (Name::from(path.as_path()), Addr(5 * PAGE_SIZE));
        let content = FileContent { path: name, size: PAGE_SIZE, start, ..content() };
        let table = FileTable { contents: vec![content], ..FileTable::default() };
        let pages = FakeImage { is_damaged: true, ..image() };
        let error = put_back(&table, &pages, Path::new("/nonexistent")).unwrap_err();
        let is_damage = matches!(error, RebuildError::Pages { source: PageError::Damaged { .. }, .. });
        assert!(is_damage, "{table:?}");
        assert_eq!(fs::read(&path).unwrap(), [3; 4096], "nothing was written");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_becomes_what_it_was_and_nothing_is_lost() {
        let folder = std::env::temp_dir().join(format!("put-back-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, saved) = (folder.join("data"), folder.join("saved"));
        let pages = image();
        let size = 2 * PAGE_SIZE + 1;
        let content = FileContent { path: Name::from(path.as_path()), size, ..content() };
        let table = FileTable { contents: vec![content], ..FileTable::default() };
        let mut was = vec![1; 4096];
        was.resize(8192, 0);
        was.push(2);
        let longer = [&was[..], b"more"].concat();
        let mut other = was.clone();
        other[5000] = 9;
        for (now, kept) in [
            (&b""[..], None),
            (&other, Some(&other[..])),
            (&longer, Some(b"more")),
            (b"short", Some(b"short")),
        ] {
            fs::write(&path, now).unwrap();
            let notes = put_back(&table, &pages, &saved).unwrap();
            assert_eq!((fs::read(&path).unwrap(), notes.len()), (was.clone(), 1), "{notes:?}");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
            let tails =
                fs::read_dir(&saved).map_or(Vec::new(), |all| all.map(|one| one.unwrap().path()).collect());
            let found: Vec<Vec<u8>> = tails.iter().map(|tail| fs::read(tail).unwrap()).collect();
            assert_eq!(found, kept.map(<[u8]>::to_vec).into_iter().collect::<Vec<_>>());
            tails.iter().for_each(|tail| fs::remove_file(tail).unwrap());
            assert_eq!(put_back(&table, &pages, &saved).unwrap(), [""; 0], "it is what it was");
        }
        // A long file that is mostly hole: only where there are data is it looked at.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        let long = FileContent { size: 1 << 39, ..table.contents[0].clone() };
        let table = FileTable { contents: vec![long], ..FileTable::default() };
        let was = File::options().read(true).open(&path).unwrap();
        assert!(is_same(&was, &table.contents[0], &pages).unwrap());
        file.write_all_at(b"x", 1 << 38).unwrap();
        assert!(!is_same(&was, &table.contents[0], &pages).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}
