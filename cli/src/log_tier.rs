//! The log tier of a job (`run --tier log=/FOLDER`): where the logs of its streams are, and what they are like.
//!
//! Used by `run`. The program's libnvstream finds it in its environment, as `holdfast cat` would by hand: the writer of
//! a log is the program itself, and no process of Holdfast is between it and its readers. Invariant: the folder is in
//! memory, and the user's alone, before the program starts. Fails by: an error that names the folder; nothing was
//! started then.

use crate::exit::{self, Exit, Failure};
use holdfast_image::size::Size;
use holdfast_streams::layout::CAPACITIES;
use holdfast_streams::place;
use holdfast_tiers::stack::{Place, TierSpec};
use holdfast_tiers::tier;
use std::ffi::OsString;

/// The log tier among those of a command line, and the others.
///
/// # Errors
/// There are two, or it cannot have this size.
pub fn among(given: &[TierSpec]) -> Result<(Option<TierSpec>, Vec<TierSpec>), Failure> {
    let (logs, others): (Vec<TierSpec>, Vec<TierSpec>) = given.iter().cloned().partition(TierSpec::is_log);
    if let [_, second, ..] = logs.as_slice() {
        let what = format!("tier {}: a job has one log tier, for all of its streams", second.name());
        return Err(Failure::new(Exit::Usage, what));
    }
    let log = logs.into_iter().next();
    let (least, most) = CAPACITIES;
    if let Some(max) = log.as_ref().and_then(|log| log.rules.max_bytes)
        && !(least..=most).contains(&max)
    {
        let what = format!("max={}: a log has {} to {}", Size(max), Size(least), Size(most));
        return Err(Failure::new(Exit::Usage, what));
    }
    Ok((log, others))
}

/// What the program finds in its environment; makes the folder.
///
/// # Errors
/// The folder is not in memory, or not this user's alone.
pub fn variables(log: Option<&TierSpec>) -> Result<Vec<(&'static str, OsString)>, Failure> {
    let Some((log, Place::Log(folder))) = log.map(|log| (log, &log.place)) else { return Ok(Vec::new()) };
    tier::make_log_folder(folder)
        .map_err(|error| Failure::new(exit::of_tier(&error), format!("tier {}: {error}", log.name())))?;
    let rules = [
        (place::SIZE, log.rules.max_bytes.map(|max| max.to_string())),
        (place::FULL, log.full.map(|full| full.text().to_owned())),
        (place::WAIT, log.wait_s.map(|wait| wait.to_string())),
    ];
    let rules = rules.into_iter().filter_map(|(name, value)| Some((name, OsString::from(value?))));
    Ok(rules.chain([(place::FOLDER, folder.into())]).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn specs(words: &[&str]) -> Vec<TierSpec> {
        words.iter().map(|word| word.parse().unwrap()).collect()
    }

    #[test]
    fn one_log_is_taken_from_among_the_tiers() {
        let (log, others) = among(&specs(&["memory", "log=/x,max=64M", "dir=/y"])).unwrap();
        assert_eq!((log.unwrap().to_string(), others.len()), ("log=/x,max=64M".into(), 2));
        assert!(among(&specs(&["log=/x", "log=/y"])).is_err());
        assert!(among(&specs(&["log=/x,max=4K"])).unwrap_err().to_string().contains("max=4K"));
        assert_eq!(among(&[]).unwrap(), (None, Vec::new()));
    }

    #[test]
    fn the_program_finds_its_rules() {
        let folder = std::path::PathBuf::from(format!("/dev/shm/holdfast-log-test-{}", std::process::id()));
        let spec: TierSpec = format!("log={},max=1M,full=keep,wait=3", folder.display()).parse().unwrap();
        let found = variables(Some(&spec)).unwrap();
        let text = |name| found.iter().find(|(known, _)| *known == name).unwrap().1.to_str().unwrap();
        assert_eq!(text("HOLDFAST_STREAMS"), folder.to_str().unwrap());
        let rules = ["HOLDFAST_STREAM_SIZE", "HOLDFAST_STREAM_FULL", "HOLDFAST_STREAM_WAIT"].map(text);
        assert_eq!(rules, ["1048576", "keep", "3"]);
        std::fs::remove_dir(&folder).unwrap();
        let disk: TierSpec = "log=/proc".parse().unwrap();
        assert!(variables(Some(&disk)).is_err());
        assert_eq!(variables(None).unwrap(), Vec::new());
    }
}
