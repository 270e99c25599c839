//! Restarting from an image of protected memory alone: the program is started afresh with its recorded command line
//! and finds the regions as files, one per name (hexadecimal), in the folder that HOLDFAST_PROTECTED_DIR names.
//!
//! The folder lies in the job's folder and is removed when the program has ended.

use super::before_restart::BeforeRestart;
use super::restart_request::RestartRequest;
use super::run::{RunRequest, run_program};
use super::supervise::{Ending, StartState};
use crate::entries::c_string;
use crate::exit::{self, Exit, Failure};
use crate::protected::{self, Region};
use crate::report;
use holdfast_abi::environment::ENV_PROTECTED_DIR;
use holdfast_image::Addr;
use holdfast_image::pages::{PageError, PageProvider, PageRun};
use holdfast_tiers::Image;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Largest piece that is copied at a time, bytes.
const PIECE: u64 = 1 << 20;

/// Writes the regions and starts the program.
///
/// # Errors
/// The image holds no table, files cannot be written, the program cannot be started.
pub fn restart(
    (request, before): (&RestartRequest<'_>, &BeforeRestart<'_>),
    image: &Image,
    state: &StartState,
) -> Result<Ending, Failure> {
    if request.also.signal_on_restart.is_some() {
        report::note("--signal-on-restart: the program starts from its beginning, and gets no signal");
    }
    before.run(request.job, image.epoch(), state)?;
    let folder = Folder::new(request.job.dir(), image.epoch().0)?;
    for region in regions(image)? {
        write_region(image, &region, &folder.0)?;
    }
    let command: Vec<&OsStr> = image.command().iter().map(|word| OsStr::from_bytes(&word.0)).collect();
    let program = command
        .first()
        .ok_or_else(|| Failure::new(Exit::BadImage, "the image does not say which program it is of"))?;
    let recipe = crate::settings::Recipe::read(request.job)?;
    std::env::set_current_dir(recipe.cwd.as_path())
        .map_err(|error| Failure::system(format_args!("changing to {}", recipe.cwd), &error))?;
    let path = crate::program::find_and_check(program)?;
    let words = command.iter().map(|word| c_string(word)).collect::<Result<Vec<_>, _>>()?;
    let mut extra = request.also.variables();
    extra.push((ENV_PROTECTED_DIR, OsString::from(&folder.0)));
    let RestartRequest { store, job, settings, .. } = *request;
    let (extra, image) = (&extra, Some(image.epoch()));
    let run = RunRequest { store, job, settings, program: &path, arguments: words, extra, image };
    run_program(run, state)
}

/// The folder; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(job: &Path, epoch: u64) -> Result<Folder, Failure> {
        let path = job.join(format!("protected-{epoch:06}"));
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| Failure::system(format_args!("making {}", path.display()), &error))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn regions(image: &Image) -> Result<Vec<Region>, Failure> {
    let mut table = Vec::new();
    let record = crate::names::record_of(image)?;
    copy(image, protected::table_run(record.inject.shared), &mut table)
        .map_err(|error| Failure::new(exit::of_pages(&error), error.to_string()))?;
    protected::parse(&table)
        .ok_or_else(|| Failure::new(Exit::BadImage, "the image holds no table of protected regions"))
}

fn write_region(image: &Image, region: &Region, folder: &Path) -> Result<(), Failure> {
    let name: String = region.name.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join(name);
    let failed = |error: PageError| {
        Failure::new(exit::of_pages(&error), format!("writing {}: {error}", path.display()))
    };
    let mut file = File::create_new(&path).map_err(|error| failed(error.into()))?;
    copy(image, region.run, &mut file).map_err(failed)
}

/// Copies a range; what the image does not hold was never touched, hence zero.
fn copy(image: &dyn PageProvider, run: PageRun, out: &mut dyn Write) -> Result<(), PageError> {
    let mut at = run.start.0;
    let end = run.end().0;
    let extents = image.extents();
    while at < end {
        let next = extents.iter().find(|extent| extent.run.end().0 > at);
        let (stop, stored) = match next {
            Some(extent) if extent.run.start.0 <= at => (extent.run.end().0.min(end), true),
            Some(extent) => (extent.run.start.0.min(end), false),
            None => (end, false),
        };
        let stop = stop.min(at + PIECE);
        let len = usize::try_from(stop - at).map_err(|error| PageError::Misuse(error.to_string()))?;
        let mut buffer = vec![0_u8; len];
        if stored {
            image.read(Addr(at), &mut buffer)?;
        }
        out.write_all(&buffer)?;
        at = stop;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::pages::{Extent, ExtentSource};
    use holdfast_image::testing::FakeImage;
    use holdfast_image::{PAGE_SIZE, PageCount};

    #[test]
    fn holes_are_zero_and_extents_are_read() {
        let extent = |page: u64, pages: u64| Extent {
            run: PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(pages) },
            source: ExtentSource::Stored,
        };
        let extents = vec![extent(2, 2), extent(4, 1), extent(7, 9)];
        let pages = FakeImage::new(extents, |start, page| page.fill((start.0 / PAGE_SIZE) as u8));
        let mut out = Vec::new();
        copy(&pages, PageRun { start: Addr(PAGE_SIZE), pages: PageCount(8) }, &mut out).unwrap();
        let first: Vec<u8> = out.chunks(4096).map(|page| page[0]).collect();
        assert_eq!(first, [0, 2, 3, 4, 0, 0, 7, 8]);
        assert!(out.chunks(4096).all(|page| page.len() == 4096 && page.iter().all(|byte| *byte == page[0])));
    }
}
