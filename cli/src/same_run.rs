//! What a job is of: which of its images are of the run that `restart` goes on with, and whether a command is the one
//! that the job was started with.
//!
//! A job of one name may be started afresh any number of times; each start is a run. Its images have the time of that
//! start. Used by `run`, `restart`, `list` and the agent. Invariant: what a run that did not come to its end has left
//! is kept until the next one has ([`Earlier`]).

use crate::exit::Failure;
use crate::last_run::LastRun;
use crate::settings::Recipe;
use holdfast_image::Epoch;
use holdfast_image::bytes::Name;
use holdfast_tiers::stack::TiersRecord;
use holdfast_tiers::{ImageInfo, Job};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What a job had when its last run began: numbers of images.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Earlier {
    /// The greatest: the images of this run have greater ones.
    pub last: u64,
    /// The first of a run that did not come to its end. From it to `last` all stay until this run has come to its own;
    /// 0: none does.
    pub kept_from: u64,
}

impl Earlier {
    /// For a run that begins now, after the one of this recipe.
    ///
    /// # Errors
    /// The job's images cannot be listed.
    pub fn of(job: &Job, old: &Recipe) -> Result<Earlier, Failure> {
        let below = TiersRecord::read(job).tiers.into_iter().flat_map(|tier| tier.versions);
        let here = job.images()?.into_iter().map(|image| image.epoch.0);
        let newest = below.chain(here).max().unwrap_or(0);
        Ok(old.earlier.followed(newest, LastRun::read(job).is_some_and(|run| run.is_done())))
    }

    /// The next run begins. One that has come to its end leaves nothing to go on from; one without an image of its own
    /// leaves what it found.
    fn followed(self, newest: u64, is_done: bool) -> Earlier {
        let kept_from = match newest > self.last {
            _ if is_done => 0,
            true => self.last + 1,
            false => self.kept_from,
        };
        Earlier { last: newest, kept_from }
    }

    /// The images that stay, the first and the last.
    pub fn kept(&self) -> Option<(u64, u64)> {
        (self.kept_from > 0 && self.kept_from <= self.last).then_some((self.kept_from, self.last))
    }

    /// Nothing was there.
    pub fn is_none(&self) -> bool {
        *self == Earlier::default()
    }
}

/// Whether an image is of the job's last run. Of one that does not say so its date decides.
pub fn is_of(image: &ImageInfo, recipe: &Recipe) -> bool {
    match image.run_ns {
        0 => image.created_ns >= recipe.created_ns,
        run_ns => run_ns == recipe.created_ns,
    }
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
    fn what_a_crash_has_left_stays_until_the_next_run_is_over() {
        let first = Earlier::default().followed(0, false);
        assert!(first.is_none() && first.kept().is_none());
        // Killed after image 4, started afresh, and killed again before an image, and after image 6.
        let second = first.followed(4, false);
        assert_eq!(second.kept(), Some((1, 4)));
        let third = second.followed(4, false);
        assert_eq!(third, second);
        let fourth = third.followed(6, false);
        assert_eq!(fourth.kept(), Some((5, 6)), "of one run at a time");
        // It has come to its end.
        assert_eq!(fourth.followed(8, true), Earlier { last: 8, kept_from: 0 });
        assert_eq!(fourth.followed(8, true).followed(8, false).kept(), None);
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
