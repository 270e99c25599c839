//! What of a job's settings may be changed while the job is there: options of `restart` and of `set`.
//!
//! `set` sends them to the agent of a running job, or changes `job.json` of one that does not run; `restart` does the
//! latter before the program goes on. Invariant: what was not given stays as it is. Fails by: words that say which
//! option is wrong.

use crate::settings::{Changes, Settings, parse_on, parse_rate, parse_signal, parse_wait, signal_name};
use holdfast_image::control::Wanted;
use holdfast_image::size::Size;
use std::time::Duration;

/// What unsets an option.
const NONE: &str = "none";

/// See the head of the file. A value of 0, or none, is as if the option had never been given.
#[derive(Clone, PartialEq, Eq, Debug, Default, clap::Args)]
pub struct NewSettings {
    /// From now on take a checkpoint this often, as for `run`; 0: only on request
    #[arg(long, value_name = "TIME", value_parser = parse_wait)]
    pub every: Option<Duration>,
    /// From now on keep the newest N images; 0: all
    #[arg(long, value_name = "N")]
    pub keep: Option<u32>,
    /// From now on keep the newest image of each of the last N days that have one, as for `run`; 0: no such rule
    #[arg(long, value_name = "N")]
    pub keep_daily: Option<u64>,
    /// From now on store at most so many bytes per second, after compression; none: as fast as possible
    #[arg(long, value_name = "RATE", value_parser = rate_or_none)]
    pub rate: Option<u64>,
    /// From now on take a checkpoint when this signal arrives at `holdfast run` or `restart`; none: at no signal. For
    /// signals to the program itself the setting of its start counts
    #[arg(long, value_name = "SIG", value_parser = signal_or_none)]
    pub signal: Option<i32>,
    /// From now on, when SIG arrives at `holdfast run` or `restart`: take a checkpoint, end the program, exit with 75;
    /// none: at no signal
    #[arg(long, value_name = "SIG=checkpoint-stop", value_parser = on_or_none)]
    pub on: Option<i32>,
    /// From now on run this after each image, as for `run`; empty: nothing
    #[arg(long, value_name = "CMD")]
    pub exec_after: Option<String>,
    /// From now on.
    #[command(flatten)]
    pub changes: Changes,
    /// The time is that of the job's own plan, which goes on.
    #[arg(skip)]
    pub by_plan: bool,
}

fn rate_or_none(text: &str) -> Result<u64, String> {
    if text == NONE { Ok(0) } else { parse_rate(text) }
}

fn signal_or_none(text: &str) -> Result<i32, String> {
    if text == NONE { Ok(0) } else { parse_signal(text) }
}

fn on_or_none(text: &str) -> Result<i32, String> {
    if text == NONE { Ok(0) } else { parse_on(text) }
}

/// `new` where it was given; 0 unsets.
fn chosen<T: PartialEq + Default>(new: Option<T>, old: Option<T>) -> Option<T> {
    match new {
        None => old,
        Some(new) => Some(new).filter(|new| *new != T::default()),
    }
}

impl NewSettings {
    /// Whether nothing was given.
    pub fn is_none(&self) -> bool {
        *self == NewSettings::default()
    }

    /// What the job goes on with.
    pub fn apply(&self, old: &Settings) -> Settings {
        let keep = self.keep.and_then(|keep| usize::try_from(keep).ok());
        // A time of less than a second is one.
        let every = self.every.map(|time| time.as_secs().max(u64::from(!time.is_zero())));
        Settings {
            every_s: chosen(every, old.every_s),
            planned: old.planned.clone().filter(|_| self.every.is_none() || self.by_plan),
            keep: chosen(keep, old.keep),
            keep_daily: chosen(self.keep_daily, old.keep_daily),
            rate: chosen(self.rate, old.rate),
            signal: chosen(self.signal, old.signal),
            stop_signal: chosen(self.on, old.stop_signal),
            exec_after: chosen(self.exec_after.clone(), old.exec_after.clone()),
            ..old.with(&self.changes)
        }
    }

    /// For the agent.
    pub fn wanted(&self) -> Wanted {
        Wanted {
            every_s: self.every.map(|time| time.as_secs()),
            keep: self.keep,
            keep_daily: self.keep_daily,
            rate: self.rate,
            signal: self.signal,
            stop_signal: self.on,
            exec_after: self.exec_after.clone(),
            wishes: self.changes.wishes(),
        }
    }

    /// What came from a command. It may be of another version, or wrong: what the command line would not take is not
    /// taken here either.
    ///
    /// # Errors
    /// Names what is not understood.
    pub fn of_wanted(wanted: &Wanted) -> Result<NewSettings, String> {
        let signal = |signal: Option<i32>| match signal {
            None | Some(0) => Ok(signal),
            Some(number) => parse_signal(&number.to_string()).map(Some),
        };
        Ok(NewSettings {
            every: wanted.every_s.map(Duration::from_secs),
            keep: wanted.keep,
            keep_daily: wanted.keep_daily,
            rate: match wanted.rate {
                Some(rate) if rate > 0 => Some(parse_rate(&Size(rate).to_string())?),
                other => other,
            },
            signal: signal(wanted.signal)?,
            on: signal(wanted.stop_signal)?,
            exec_after: match &wanted.exec_after {
                Some(command) if command.contains('\0') => return Err("exec-after holds a NUL byte".into()),
                other => other.clone(),
            },
            changes: Changes::of_wishes(&wanted.wishes)?,
            by_plan: false,
        })
    }
}

/// Settings in words, as far as they can be changed: one line.
pub fn told(settings: &Settings) -> String {
    let mut words = vec![match settings.every_s {
        Some(seconds) => {
            let planned = if settings.planned.is_some() { ", as planned" } else { "" };
            format!("an image every {}{planned}", crate::report::interval(seconds))
        }
        None => "images on request".to_owned(),
    }];
    words.extend(settings.keep.map(|keep| format!("the newest {keep} are kept")));
    words.extend(settings.keep_daily.map(|days| format!("the newest of each of {days} days is kept")));
    words.extend(settings.rate.map(|rate| format!("at most {}/s", crate::report::size(rate))));
    words.extend(settings.signal.map(|signal| format!("at {}", signal_name(signal))));
    words.extend(
        settings.stop_signal.map(|signal| format!("at {}, and the program is ended", signal_name(signal))),
    );
    words.extend(settings.exec_after.as_ref().map(|command| format!("then `{command}`")));
    words.join(", ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::settings::{EngineChoice, Planned};

    #[test]
    fn what_was_not_given_stays() {
        let old = Settings {
            every_s: Some(60),
            keep: Some(2),
            keep_daily: Some(7),
            rate: Some(1 << 20),
            signal: Some(10),
            stop_signal: Some(15),
            exec_after: Some("true".into()),
            ..Settings::default()
        };
        assert_eq!(NewSettings::default().apply(&old), old);
        assert!(NewSettings::default().is_none());
        let off = NewSettings {
            every: Some(Duration::ZERO),
            keep: Some(0),
            keep_daily: Some(0),
            rate: Some(0),
            signal: Some(0),
            on: Some(0),
            exec_after: Some(String::new()),
            ..NewSettings::default()
        };
        assert_eq!(off.apply(&old), Settings::default());
        let changes = Changes { engine: Some(EngineChoice::Copy), ..Changes::default() };
        let some = NewSettings { keep: Some(5), changes, ..NewSettings::default() };
        assert_eq!(some.apply(&old), Settings { keep: Some(5), engine: EngineChoice::Copy, ..old });
    }

    #[test]
    fn a_plan_goes_on_until_a_time_is_given() {
        let old = Settings { every_s: Some(60), planned: Some(Planned::default()), ..Settings::default() };
        assert_eq!(told(&old), "an image every 1m, as planned");
        let seven = NewSettings { every: Some(Duration::from_secs(7)), ..NewSettings::default() };
        assert_eq!(seven.apply(&old), Settings { every_s: Some(7), ..Settings::default() });
        let planned = NewSettings { by_plan: true, ..seven };
        assert_eq!(planned.apply(&old), Settings { every_s: Some(7), ..old.clone() });
        assert_eq!(NewSettings { keep: Some(0), ..NewSettings::default() }.apply(&old), old);
    }

    #[test]
    fn a_request_has_all_of_it_and_nothing_wrong() {
        let new = NewSettings {
            every: Some(Duration::from_secs(30)),
            keep: Some(0),
            keep_daily: Some(7),
            rate: Some(1 << 20),
            signal: Some(10),
            on: Some(0),
            exec_after: Some("echo".into()),
            changes: Changes { engine: Some(EngineChoice::Fork), ..Changes::default() },
            by_plan: false,
        };
        assert_eq!(NewSettings::of_wanted(&new.wanted()).unwrap(), new);
        for wrong in [
            Wanted { signal: Some(9), ..Wanted::default() },
            Wanted { stop_signal: Some(-1), ..Wanted::default() },
            Wanted { rate: Some(1), ..Wanted::default() },
            Wanted { exec_after: Some("a\0b".into()), ..Wanted::default() },
        ] {
            assert!(NewSettings::of_wanted(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn settings_are_told_in_a_line() {
        let settings =
            Settings { every_s: Some(60), keep: Some(2), stop_signal: Some(15), ..Settings::default() };
        let line = "an image every 1m, the newest 2 are kept, at SIGTERM, and the program is ended";
        assert_eq!(told(&settings), line);
        let daily = Settings { keep_daily: Some(7), ..Settings::default() };
        assert_eq!(told(&daily), "images on request, the newest of each of 7 days is kept");
        assert_eq!((daily.store_rules().keep, settings.store_rules().keep), (Some(1), Some(2)));
        assert_eq!(told(&Settings::default()), "images on request");
    }
}
