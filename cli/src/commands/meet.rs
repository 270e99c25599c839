//! Members of a gang whose hosts have stores of their own meet before a restart, and agree on the image.
//!
//! `restart` asks a process of its own for that (`holdfast __meet`), for it must stay without threads until its program
//! is there. That process holds the lock of the member's job as long as it lives, and ends when `restart` does.
//! Fails by: what the members say, as the failure of `restart`.

use crate::args::MeetArgs;
use crate::exit::{Exit, Failure, FailureKind};
use crate::front::patience::Patience;
use crate::front::wait_for_lock;
use crate::gang::agree::{Agreed, Met, agree};
use crate::gang::folder::GangFolder;
use crate::gang::image::GangImage;
use crate::gang::waiting::{Meanwhile, Plan};
use crate::helper;
use crate::last_run;
use crate::report;
use crate::settings::GangPlace;
use holdfast_tiers::Store;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

/// The answer of the process.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Agreed(Agreed),
    Failed { exit: Exit, message: String },
}

/// Asks it: the image that all members restart.
///
/// # Errors
/// They do not agree on one, or do not all come.
pub fn ask(store: &Store, place: &GangPlace, wanted: Option<u64>) -> Result<GangImage, Failure> {
    let words =
        serde_json::to_string(place).map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let failed = |error: io::Error| Failure::system("asking the other members of the gang", &error);
    let mut command = Command::new(helper::binary()?);
    command.arg("--store").arg(store.root()).args(["__meet", "--place", &words]);
    if let Some(number) = wanted {
        command.args(["--image", &number.to_string()]);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(failed)?;
    let mut text = Vec::new();
    if let Some(stdout) = &mut child.stdout {
        stdout.read_to_end(&mut text).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    match serde_json::from_slice(&text) {
        Ok(Answer::Agreed(Agreed { image, whys, .. })) => {
            whys.iter().for_each(|why| report::warn(why));
            let gone =
                || Failure::new(Exit::NotFound, format!("the folder of gang {} was removed", place.name));
            GangFolder::open(store, &place.name)?.ok_or_else(gone)?.image(image)
        }
        Ok(Answer::Failed { exit, message }) => Err(Failure::new(exit, message)),
        Err(_) => Err(Failure::new(
            Exit::Internal,
            format!("the process that met the other members of gang {} has ended: {status}", place.name),
        )),
    }
}

/// `holdfast __meet`.
///
/// # Errors
/// The answer cannot be written.
pub fn run(args: &MeetArgs, root: Option<&Path>) -> Result<(), Failure> {
    let answer = match meet(args, root) {
        Ok(agreed) => Answer::Agreed(agreed),
        Err(Failure { exit, message, .. }) => Answer::Failed { exit, message },
    };
    let text =
        serde_json::to_string(&answer).map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    report::print(&text)
}

fn meet(args: &MeetArgs, root: Option<&Path>) -> Result<Agreed, Failure> {
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
    let place: GangPlace = serde_json::from_str(&args.place)
        .map_err(|error| Failure::new(Exit::Usage, format!("--place: {error}")))?;
    let store = crate::names::open_store(root)?;
    // The leader's file is that of who has the lock of member 0's job. A host may have nothing of its member.
    let job = store.create_job(&place.job_of(place.member))?;
    let lock = wait_for_lock::take(&job, &Patience::default())?;
    let stdin = io::stdin();
    let is_over = || {
        let gone = holdfast_sys::poll::readable(&[stdin.as_fd()], Some(std::time::Duration::ZERO));
        let text = "this command was ended while the other members of the gang were waited for";
        let is_gone = gone.is_ok_and(|ready| ready == [true]);
        is_gone.then(|| Failure { kind: FailureKind::FrontGone, ..Failure::new(Exit::Internal, text) })
    };
    let say = |text: String| report::note(&text);
    let meanwhile = Meanwhile { fds: vec![stdin.as_fd()], is_over: &is_over, say: &say };
    let plan = Plan { store: &store, place: &place, image: None, meets: true, key: None };
    let agreed = agree(&Met { plan, job: &job, lock: &lock, over: stdin.as_fd() }, args.image, &meanwhile);
    if !job.has_recipe()? && job.images()?.is_empty() {
        // It was made here.
        let _ = last_run::leave_nothing(&job);
    }
    drop(lock);
    agreed?.map_err(|(exit, message)| Failure::new(exit, message))
}
