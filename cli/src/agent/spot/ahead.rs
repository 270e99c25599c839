//! Images ahead of the notice, and what goes first at it.
//!
//! Used by the watch of `--on-spot`. An image is taken ahead where what the program has now would need more than half
//! of the time that a notice leaves: a job without `--every`, or one that writes much, would have nothing on a tier
//! that stays otherwise. At the notice, where there is no time for all, the images that are on their way go first: the
//! program runs on meanwhile, and the last one needs them anyway, being an increment on them. Invariants: no image is
//! taken ahead while an earlier one is on its way, nor within a minute of the last one; no answer is waited for long,
//! as the watch must hear of the notice. Fails by: nothing; what cannot be looked up is looked up again.

use super::budget::{self, Need};
use crate::agent::context::JobContext;
use crate::client::Agent;
use crate::report;
use holdfast_image::Epoch;
use holdfast_image::control::{Reply, Request, Wishes};
use holdfast_tiers::ImageInfo;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks, between two tries of one, and between two images.
const LOOK: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_secs(4);
const IMAGE: Duration = Duration::from_secs(60);
/// How long the agent's answer is waited for: a look takes milliseconds, unless a process of the job hangs in the
/// kernel.
const ANSWER: Duration = Duration::from_secs(3);

/// See the head of the file.
#[derive(Debug)]
pub struct Ahead {
    /// What a notice leaves.
    left: Duration,
    next_look: Instant,
    next_image: Instant,
}

impl Ahead {
    /// For notices that leave so much.
    pub fn new(left: Duration) -> Ahead {
        let now = Instant::now();
        Ahead { left, next_look: now, next_image: now }
    }

    /// Looks, if it is time to; asks for an image, if that is necessary.
    pub fn look(&mut self, context: &JobContext) {
        let now = Instant::now();
        if now < self.next_look.max(self.next_image) {
            return;
        }
        self.next_look = now + AGAIN;
        let Some(need) = need(context) else { return };
        self.next_look = now + LOOK;
        if need.waiting > 0 || need.of_all() <= self.left / 2 {
            return;
        }
        tracing::info!("an image ahead of the notice: {need}");
        // If it fails, the front tells, as of the images of `--every`.
        let wanted = Request::Checkpoint { stop: false, wait: false, wishes: Wishes::default() };
        let _ = ask(context, &wanted);
        self.next_image = Instant::now() + IMAGE;
    }
}

/// What the next image would need; none: there is no tier, or no program yet. What has no tier is not looked at.
pub fn need(context: &JobContext) -> Option<Need> {
    let mut tiers = context.cascade.as_ref()?.states();
    tiers.retain(budget::is_below);
    if tiers.is_empty() {
        return None;
    }
    let Reply::Checked(checked) = ask(context, &Request::Check)? else { return None };
    let waits = tiers.iter().any(|tier| !tier.waiting.is_empty());
    let images: Vec<ImageInfo> = if waits { context.job.images().ok()? } else { Vec::new() };
    let size = |epoch: Epoch| images.iter().find(|image| image.epoch == epoch).map_or(0, |image| image.bytes);
    budget::nearest(&tiers, checked.estimate?.image_bytes, &size)
}

/// Waits until the images that are on their way have come.
pub fn wait_for_copies(context: &JobContext, end: Instant) {
    const LOOK: Duration = Duration::from_millis(200);
    while Instant::now() < end && context.cascade.as_ref().is_some_and(|cascade| cascade.is_busy()) {
        thread::sleep(LOOK);
    }
}

fn ask(context: &JobContext, request: &Request) -> Option<Reply> {
    let agent = Agent::connect(&context.job).ok()?;
    agent.send(request).ok()?;
    agent.receive(Some(ANSWER)).ok()?
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (image, speed) = (report::size(self.image), report::size(self.speed));
        write!(f, "{image}")?;
        if self.waiting > 0 {
            write!(f, ", and {} that wait,", report::size(self.waiting))?;
        }
        write!(f, " to {} take about {} s at {speed}/s", self.tier, self.of_all().as_secs().max(1))
    }
}
