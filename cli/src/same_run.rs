//! What a job is of: which of its images are of the run that `restart` goes on with, and whether a command is the one
//! that the job was started with.
//!
//! A job of one name may be started afresh any number of times; each start is a run. Its images have the time of that
//! start. Used by `run`, `restart`, `list` and the agent.

use crate::exit::Failure;
use crate::gang::choice;
use crate::settings::{GangPlace, Recipe};
use holdfast_image::Epoch;
use holdfast_image::bytes::Name;
use holdfast_tiers::{ImageInfo, Job};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Whether an image is of the job's last run. Of one that does not say so its date decides.
pub fn is_of(image: &ImageInfo, recipe: &Recipe) -> bool {
    match image.run_ns {
        0 => image.created_ns >= recipe.created_ns,
        run_ns => run_ns == recipe.created_ns,
    }
}

/// The newest image that its last run can go on from; of a member of a gang, that of the gang.
///
/// # Errors
/// What there is of it cannot be read.
pub fn newest(job: &Job, gang: Option<&GangPlace>) -> Result<Option<u64>, Failure> {
    newest_of(job, gang, &|_| true)
}

/// The same of those images alone.
///
/// # Errors
/// As [`newest`].
pub fn newest_of(
    job: &Job,
    gang: Option<&GangPlace>,
    among: &dyn Fn(u64) -> bool,
) -> Result<Option<u64>, Failure> {
    if let Some(place) = gang {
        return choice::newest(job, place, among);
    }
    let (recipe, images) = (Recipe::read(job)?, job.images()?);
    let is_its = |image: &&ImageInfo| image.broken.is_none() && is_of(image, &recipe) && among(image.epoch.0);
    Ok(images.iter().rev().find(is_its).map(|image| image.epoch.0))
}

/// The recipe of a job that goes on from an image of any of its runs: that run's.
#[must_use]
pub fn recipe_of(recipe: Recipe, image: &ImageInfo, command: &[Name]) -> Recipe {
    if is_of(image, &recipe) {
        return recipe;
    }
    let created_ns = if image.run_ns == 0 { image.created_ns } else { image.run_ns };
    Recipe { created_ns, command: command.to_vec(), ..recipe }
}

/// Why there is no image to go on from.
pub fn none_of_it(job: &str, others: impl IntoIterator<Item = Epoch>) -> String {
    match others.into_iter().last() {
        None => format!("job {job} has no image"),
        Some(epoch) => format!(
            "job {job} has no image of its last run; image {epoch} is of an earlier one, and `holdfast restart \
             {job}@{epoch}` goes on from it"
        ),
    }
}

/// In what a command, given in a folder, differs from the one that the job was started with.
pub fn differences(recipe: &Recipe, command: &[OsString], cwd: &Path) -> Vec<String> {
    if recipe.command.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let old: Vec<OsString> = recipe.command.iter().map(|word| OsString::from_vec(word.0.clone())).collect();
    let (Some(then), Some(now)) = (old.first(), command.first()) else { return found };
    let (then, now) = (place(recipe.cwd.as_path(), then), place(cwd, now));
    if then != now {
        found.push(format!("its program is {}, not {}", then.display(), now.display()));
    }
    if old[1..] != command[1..] {
        found.push(format!("its arguments are `{}`, not `{}`", shown(&old[1..]), shown(&command[1..])));
    }
    if real(recipe.cwd.as_path()) != real(cwd) {
        found.push(format!("its folder is {}, not {}", recipe.cwd, cwd.display()));
    }
    found
}

/// Whether a command runs another program, or another script.
pub fn is_other_program(recipe: &Recipe, command: &[OsString], cwd: &Path) -> bool {
    let old: Vec<OsString> = recipe.command.iter().map(|word| OsString::from_vec(word.0.clone())).collect();
    let (Some(then), Some(now)) = (old.first(), command.first()) else { return false };
    place(recipe.cwd.as_path(), then) != place(cwd, now)
        || crate::names::title(&old) != crate::names::title(command)
}

fn shown(words: &[OsString]) -> String {
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Where a program is; its name alone, where it is looked for in PATH.
fn place(cwd: &Path, word: &OsString) -> PathBuf {
    if word.as_bytes().contains(&b'/') { real(&cwd.join(word)) } else { PathBuf::from(word) }
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(created_ns: u64, run_ns: u64) -> ImageInfo {
        ImageInfo {
            epoch: Epoch(1),
            created_ns,
            run_ns,
            bytes: 0,
            total_bytes: 0,
            program_bytes: 0,
            stop_ns: 0,
            parent: None,
            unsaved: Vec::new(),
            broken: None,
            complete: true,
        }
    }

    fn recipe(line: &str, cwd: &str) -> Recipe {
        let command = line.split(' ').map(Name::from).collect();
        Recipe { command, cwd: Name::from(cwd), created_ns: 100, ..Recipe::default() }
    }

    #[test]
    fn images_are_of_the_run_that_they_name() {
        let recipe = recipe("./sim a", "/");
        assert!(is_of(&image(500, 100), &recipe) && is_of(&image(50, 100), &recipe));
        assert!(!is_of(&image(500, 99), &recipe) && !is_of(&image(500, 101), &recipe));
        // Of older versions.
        assert!(is_of(&image(100, 0), &recipe) && !is_of(&image(99, 0), &recipe));
        let other = recipe_of(recipe.clone(), &image(500, 99), &[Name::from("./other")]);
        assert_eq!((other.created_ns, other.command.as_slice()), (99, &[Name::from("./other")][..]));
        assert_eq!(recipe_of(recipe.clone(), &image(7, 100), &[]), recipe);
        assert!(is_of(&image(7, 0), &recipe_of(recipe, &image(7, 0), &[])));
    }

    #[test]
    fn what_differs_is_named() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let found =
            |line: &str, cwd: &str| differences(&recipe("./sim a", "/w"), &words(line), Path::new(cwd));
        assert!(found("./sim a", "/w").is_empty() && found("/w/./sim a", "/w").is_empty());
        assert_eq!(found("./sim b", "/w"), ["its arguments are `a`, not `b`"]);
        assert_eq!(
            found("./sim a", "/v"),
            ["its program is /w/./sim, not /v/./sim", "its folder is /w, not /v"]
        );
        assert_eq!(found("/sum a", "/w"), ["its program is /w/./sim, not /sum"]);
        assert!(differences(&Recipe::default(), &words("x"), Path::new("/")).is_empty());
    }

    #[test]
    fn another_script_is_another_program() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let other = |old: &str, new: &str| is_other_program(&recipe(old, "/w"), &words(new), Path::new("/w"));
        assert!(!other("./sim a", "./sim b") && !other("python3 a.py 1", "python3 a.py 2"));
        assert!(other("python3 a.py", "python3 b.py") && other("./sim", "./sum"));
    }
}
