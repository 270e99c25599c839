//! An agent that was started by libholdfast in a program that was run with LD_PRELOAD alone.
//!
//! Settings come from the environment: HOLDFAST_STORE, HOLDFAST_NAME, HOLDFAST_EVERY, HOLDFAST_KEEP, HOLDFAST_ENGINE,
//! HOLDFAST_ORDER, HOLDFAST_COW, HOLDFAST_RATE, HOLDFAST_SAVE_FILES, HOLDFAST_COMPRESS; tiers, and compression where
//! the last is not there, from the configuration files. The path of the socket is printed on standard output, which is
//! then closed: that is the library's sign that it may connect.

use crate::exit::{Exit, Failure};
use crate::job_lock;
use crate::settings::{Changes, Recipe, SaveFiles, Settings, parse_duration, parse_rate};
use crate::{config, log, names, tiers};
use holdfast_abi::environment::ENV_ENGINE;
use holdfast_image::control::Wishes;
use holdfast_sys::clock;
use holdfast_tiers::{Job, JobLock, Store};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// As `run --compress`.
const COMPRESS: &str = "HOLDFAST_COMPRESS";

/// Makes or opens the job that the environment asks for, and locks it.
///
/// # Errors
/// A variable is wrong, or the store cannot be used.
pub fn open(store: &Store) -> Result<(Job, JobLock, Recipe), Failure> {
    let mut settings = settings(|name| std::env::var(name).ok())?;
    if std::env::var_os(COMPRESS).is_none() {
        settings.compress = config::compression(store)?.unwrap_or_default();
    }
    settings.tiers = tiers::chosen(&[], false, store)?;
    settings.max_space = config::max_space(store)?;
    let name = std::env::var("HOLDFAST_NAME").ok();
    // Which program it is shows only when it registers, and then the job must have its name already.
    names::claim_job(store, name.as_deref(), "attached", |job| {
        let lock = job_lock::take(job)?;
        let earlier = Recipe::read(job).unwrap_or_default().earlier.of_next(job)?;
        let recipe = Recipe {
            earlier,
            created_ns: clock::realtime_ns(),
            settings: settings.clone(),
            id: tiers::id_for(&settings, String::new())?,
            unnamed: name.is_none(),
            ..Recipe::default()
        };
        recipe.write(job)?;
        Ok((job.clone(), lock, recipe))
    })
}

fn settings(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
    let wrong = |name: &str, why: String| Failure::new(Exit::Usage, format!("{name}: {why}"));
    let every_s = match variable("HOLDFAST_EVERY") {
        Some(text) => Some(parse_duration(&text).map_err(|why| wrong("HOLDFAST_EVERY", why))?.as_secs()),
        None => None,
    };
    let keep = match variable("HOLDFAST_KEEP") {
        Some(text) => match text.parse::<usize>() {
            Ok(number) => Some(number).filter(|&number| number > 0),
            _ => return Err(wrong("HOLDFAST_KEEP", format!("{text:?} is not a number of images"))),
        },
        None => None,
    };
    let rate = match variable("HOLDFAST_RATE") {
        Some(text) => Some(parse_rate(&text).map_err(|why| wrong("HOLDFAST_RATE", why))?),
        None => None,
    };
    let save_files = match variable("HOLDFAST_SAVE_FILES") {
        Some(text) => text.parse().map_err(|why| wrong("HOLDFAST_SAVE_FILES", why))?,
        None => SaveFiles::default(),
    };
    let wishes = Wishes {
        engine: variable(ENV_ENGINE),
        order: variable("HOLDFAST_ORDER"),
        cow: variable("HOLDFAST_COW"),
        compress: variable(COMPRESS),
        outside: variable("HOLDFAST_OUTSIDE").or_else(|| variable("HOLDFAST_TCP")),
        signal: None,
    };
    let changes = Changes::of_wishes(&wishes).map_err(|why| {
        wrong("HOLDFAST_ENGINE, HOLDFAST_ORDER, HOLDFAST_COW, HOLDFAST_COMPRESS, HOLDFAST_TCP", why)
    })?;
    Ok(Settings { every_s, keep, rate, save_files, ..Settings::default() }.with(&changes))
}

/// Tells the library where the socket is, and leaves its session.
///
/// # Errors
/// Standard output is closed: the program that started this agent has ended.
pub fn announce(job: &Job) -> Result<(), Failure> {
    let log = log::open(job)?;
    let path = job.socket_path();
    let mut line = path.as_os_str().as_bytes().to_vec();
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::system("telling the library where the socket is", &error))?;
    holdfast_sys::spawn::detach(&log)
        .map_err(|error| Failure::system("leaving the program's session", &error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::settings::EngineChoice;

    #[test]
    fn settings_come_from_the_environment() {
        let with = |pairs: &'static [(&str, &str)]| {
            settings(move |name| {
                pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(with(&[]).unwrap(), Settings::default());
        let read = with(&[("HOLDFAST_EVERY", "5m"), ("HOLDFAST_KEEP", "3")]).unwrap();
        assert_eq!((read.every_s, read.keep), (Some(300), Some(3)));
        let read =
            with(&[("HOLDFAST_ENGINE", "copy"), ("HOLDFAST_COW", "none"), ("HOLDFAST_RATE", "1M")]).unwrap();
        assert_eq!((read.engine, read.rate), (EngineChoice::Copy, Some(1 << 20)));
        assert_eq!(with(&[("HOLDFAST_SAVE_FILES", "2m")]).unwrap().save_files, SaveFiles::UpTo(2 << 20));
        assert_eq!(with(&[("HOLDFAST_SAVE_FILES", "yes")]).unwrap_err().exit, Exit::Usage);
        assert_eq!(read.cow.to_string(), "none");
        assert_eq!(with(&[("HOLDFAST_ORDER", "random")]).unwrap_err().exit, Exit::Usage);
        assert_eq!(with(&[("HOLDFAST_EVERY", "soon")]).unwrap_err().exit, Exit::Usage);
        assert_eq!(with(&[("HOLDFAST_KEEP", "few")]).unwrap_err().exit, Exit::Usage);
        assert_eq!(with(&[("HOLDFAST_KEEP", "0")]).unwrap().keep, None, "all");
    }
}
