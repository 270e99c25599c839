//! `--every auto` as the loop sees it: after each image the interval is planned anew, by a thread of its own, as that
//! may take a while.
//!
//! Part of the loop. Invariant: a plan that fails leaves the interval as it is.

use super::super::events::Event;
use super::EventLoop;
use crate::new_settings::{NewSettings, told};
use crate::planned;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

impl EventLoop {
    /// Plans the interval, if it is to be planned, and is this job's: that of a gang is its leader's.
    pub(super) fn plan(&self) {
        let settings = self.context.settings();
        if settings.planned.is_none() || self.context.every_s().is_none() {
            return;
        }
        let (context, reporter) = (Arc::clone(&self.context), self.reporter.clone());
        let started = thread::Builder::new().name("plan".into()).spawn(move || {
            let found = planned::interval(&context.job, &settings).map_err(|failure| failure.message);
            reporter.report(Event::Planned(found));
        });
        if let Err(error) = started {
            tracing::warn!("starting the thread that plans the interval: {error}");
        }
    }

    /// The next checkpoint comes when the plan says, from the last one on.
    pub(super) fn planned(&mut self, found: Result<u64, String>) {
        let settings = self.context.settings();
        let (Some(before), Some(_)) = (settings.every_s, &settings.planned) else { return };
        let seconds = match found {
            Ok(seconds) if seconds != before => seconds,
            Ok(_) => return,
            Err(why) => return tracing::warn!("the interval stays at {before} s, without a plan: {why}"),
        };
        let every = Some(Duration::from_secs(seconds));
        if let Err(failure) =
            self.context.set(&NewSettings { every, by_plan: true, ..NewSettings::default() })
        {
            return tracing::warn!("the interval stays at {before} s: {failure}");
        }
        tracing::info!("from now on: {}", told(&self.context.settings()));
        let last = self.due.and_then(|due| due.checked_sub(Duration::from_secs(before)));
        self.due = last.unwrap_or_else(Instant::now).checked_add(Duration::from_secs(seconds));
    }
}
