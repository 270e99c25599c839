//! `--on-spot`: an image, and the end of the program, when the cloud is about to take this machine away.
//!
//! A thread of the agent: every two seconds it asks the cloud, or runs the user's command, until there is a notice.
//! Then it asks for what `holdfast stop` asks for, at the agent's own socket, again and again while there is time. The
//! bound of `--rate` does not hold any more. Before there is a notice it looks now and then how long that would take
//! ([`budget`]): where it is more than half of the time that the notice leaves, an image is taken ahead, so that the
//! last one is a small increment. Invariants: a service that does not answer is told of once, and asked
//! again; the command is ended together with the agent. Fails by: warnings; the program runs on.

mod ahead;
mod budget;
mod cloud;

use super::context::JobContext;
use crate::client::{self, Agent};
use crate::exit::Failure;
use crate::settings::{Settings, Spot};
use crate::user_command;
use ahead::Ahead;
use cloud::{Cloud, Notice};
use holdfast_image::control::{Request, Wishes};
use holdfast_sys::ptrace;
use parking_lot::Mutex;
use std::process::Child;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Between two questions. AWS asks for no more than one in five seconds to be sure of two minutes; Azure for one in a
/// second.
const PAUSE: Duration = Duration::from_secs(2);
/// Between two tries of an image.
const AGAIN: Duration = Duration::from_secs(1);
/// How long images are tried where nothing says how much time is left: the longest notice that a cloud gives.
const LONGEST: Duration = Duration::from_secs(120);

/// The watch; it ends with the agent.
#[derive(Debug)]
pub struct SpotWatch {
    running: Arc<Mutex<Option<Child>>>,
}

impl Drop for SpotWatch {
    fn drop(&mut self) {
        if let Some(child) = self.running.lock().as_mut()
            && let Ok(group) = i32::try_from(child.id())
        {
            let _ = ptrace::kill(-group, libc::SIGTERM);
        }
    }
}

/// Starts the watch, if the job has one.
///
/// # Errors
/// No thread can be made.
pub fn watch(context: &Arc<JobContext>) -> Result<Option<SpotWatch>, Failure> {
    let Some(spot) = context.settings().on_spot.clone() else { return Ok(None) };
    let running = Arc::new(Mutex::new(None));
    let (context, child) = (Arc::clone(context), Arc::clone(&running));
    let thread = thread::Builder::new().name("spot".to_owned());
    thread
        .spawn(move || {
            let notice = wait(&context, &spot, &child);
            stop(&context, notice);
        })
        .map_err(|error| Failure::system("starting the watch of --on-spot", &error))?;
    Ok(Some(SpotWatch { running }))
}

/// Waits for the notice.
fn wait(context: &JobContext, spot: &Spot, child: &Mutex<Option<Child>>) -> Notice {
    let mut cloud = None;
    let mut told = false;
    let mut ahead = Ahead::new(shortest(spot));
    loop {
        let asked = match spot {
            Spot::Command(command) => ask_command(context, command, child),
            _ => ask_cloud(&mut cloud, spot),
        };
        match asked {
            Ok(Some(notice)) => return notice,
            Ok(None) => told = false,
            Err(why) => {
                if !std::mem::replace(&mut told, true) {
                    context.warn(format!(
                        "--on-spot {spot}: {why}: the end of this machine would come without an image; it is asked \
                         again every {} s",
                        PAUSE.as_secs()
                    ));
                }
            }
        }
        ahead.look(context);
        thread::sleep(PAUSE);
    }
}

/// The least that a notice leaves: of AWS two minutes; of Google, Azure, and batch systems mostly, half of one.
fn shortest(spot: &Spot) -> Duration {
    match spot {
        Spot::Aws => Duration::from_secs(120),
        Spot::Google | Spot::Azure | Spot::Command(_) => Duration::from_secs(30),
    }
}

fn ask_cloud(cloud: &mut Option<Cloud>, spot: &Spot) -> Result<Option<Notice>, String> {
    let cloud = match cloud {
        Some(cloud) => cloud,
        None => cloud.insert(Cloud::new()?),
    };
    cloud.ask(spot)
}

/// Status 0 is the notice.
fn ask_command(
    context: &JobContext,
    command: &str,
    running: &Mutex<Option<Child>>,
) -> Result<Option<Notice>, String> {
    const LOOK: Duration = Duration::from_millis(200);
    let start = || user_command::of_job(command, &context.job, context.cwd.as_path());
    let child = start().map_err(|failure| failure.to_string())?.spawn();
    *running.lock() = Some(child.map_err(|error| format!("starting /bin/sh: {error}"))?);
    loop {
        let ended = running.lock().as_mut().map_or(Ok(None), Child::try_wait);
        match ended {
            Ok(None) => thread::sleep(LOOK),
            Ok(Some(status)) => {
                *running.lock() = None;
                // What a shell says of a command that cannot be found, or executed.
                let is_missing = matches!(status.code(), Some(126 | 127));
                return match status.success() {
                    true => Ok(Some(Notice(None))),
                    false if is_missing => Err("the command cannot be executed".to_owned()),
                    false => Ok(None),
                };
            }
            Err(error) => return Err(format!("waiting for the command: {error}")),
        }
    }
}

/// An image, and the end of the program.
fn stop(context: &JobContext, Notice(left): Notice) {
    let end = Instant::now() + left.unwrap_or(LONGEST);
    let when = left.map_or("soon".to_owned(), |left| format!("in {} s", left.as_secs()));
    let need = ahead::need(context);
    let how_long = need.as_ref().map_or_else(String::new, |need| format!("; {need}"));
    context.warn(format!(
        "--on-spot: this machine goes {when}: an image is taken, and the program ended{how_long}"
    ));
    {
        let mut settings = context.settings.lock();
        *settings = Arc::new(Settings { rate: None, ..Settings::clone(&settings) });
    }
    if need.is_some_and(|need| left.is_some_and(|left| need.is_for_those_that_wait(left))) {
        ahead::wait_for_copies(context, end);
    }
    loop {
        let asked = Agent::connect(&context.job).and_then(|agent| {
            agent.send(&Request::Checkpoint { stop: true, wait: true, wishes: Wishes::default() })?;
            agent.receive(None)
        });
        let failure = match asked {
            Ok(Some(reply)) => match client::accepted(&context.job, reply) {
                Ok(_) => return,
                Err(failure) => failure,
            },
            Ok(None) => return,
            Err(failure) => failure,
        };
        let is_over = Instant::now() + AGAIN >= end;
        context.warn(format!(
            "--on-spot: no image: {failure}{}",
            if is_over { "; the program runs on" } else { "; it is tried again" }
        ));
        if is_over {
            return;
        }
        thread::sleep(AGAIN);
    }
}
