//! The agent's part in a gang: it finds the other members before anything is started, and makes an image of the gang of
//! what all have committed.
//!
//! Called at the agent's start, by its loop and by the checkpoint thread. Invariants: an image of the gang is there
//! only when every member has committed its own; of what the newest of them names nothing is removed. Fails by: the
//! agent's end before the program runs, or a failed checkpoint.

use super::context::JobContext;
use super::error::CheckpointError;
use super::guard::Guard;
use super::membership::Membership;
use super::request::CheckpointRequest;
use crate::exit::{Exit, Failure, FailureKind};
use crate::front_link::{Link, Tell};
use crate::gang::added::Added;
use crate::gang::folder::{GangFolder, Needed};
use crate::gang::gather::gather;
use crate::gang::guard::offer::{Offer, Said};
use crate::gang::image::{MemberImage, Remote, digest_of};
use crate::gang::message::{Failed, FailedKind};
use crate::gang::round::Round;
use crate::gang::seat::Seat;
use crate::gang::ssh::{self, Again, Ssh, Task};
use crate::gang::takeover::{self, Leads, Parts};
use crate::gang::waiting::{Meanwhile, Plan};
use crate::rsh::launchers;
use crate::settings::{GangPlace, Settings};
use holdfast_image::Epoch;
use holdfast_process::{Gang, GangError, Phase};
use holdfast_sys::fault;
use holdfast_sys::poll::Bell;
use holdfast_sys::signals::SignalMessages;
use holdfast_tiers::redundancy::Protection;
use holdfast_tiers::{Job, Store};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the slowest member may take longer than another one, to store what can be stored before the stop, and
/// after it. One that is lost is noticed at once.
pub(super) const STORING: Duration = Duration::from_secs(4 * 3600);
/// The same of a small file.
const NAMING: Duration = Duration::from_secs(120);
/// How long a stopped program waits for other members. Who is late fails the round, and all go on.
pub(super) const STOPPED: Duration = Duration::from_millis(1500);
/// How long rounds are begun anew whose programs could not be stopped in time.
const BUSY: Duration = Duration::from_secs(20);
/// The pause before.
const PAUSE: Duration = Duration::from_millis(50);

/// Finds the other members, if the job is one of a gang. `starts`: those that were added to it are started, by ssh.
///
/// # Errors
/// One did not come, or this one was refused; the front or a signal has ended the waiting.
pub fn enter(
    store: &Store,
    job: &Job,
    settings: &Settings,
    (image, starts): (Option<u64>, Option<&[OsString]>),
    (link, signals): (Option<&Link>, &SignalMessages),
) -> Result<Option<Membership>, Failure> {
    let Some(place) = &settings.gang else { return Ok(None) };
    let folder = GangFolder::make(store, place)?;
    let added = added(&folder, place, image)?;
    if added.is_some() {
        launchers::link(&store.job(&place.job_of(0))?)?;
    }
    let started = Started::new()?;
    if let (Some(added), Some(image), Some(options)) = (&added, image, starts) {
        let (members, supervised) = (place.members, settings.supervised);
        started.restart(added, (store, place), Again { image, members, supervised, options })?;
    }
    let is_over = || {
        if let Some(why) = started.failed.lock().take() {
            return Some(Failure::new(Exit::Refused, why));
        }
        if signals.next().is_some() {
            let text = "a signal came while the other members of the gang were waited for";
            return Some(Failure { kind: FailureKind::Interrupted, ..Failure::new(Exit::Internal, text) });
        }
        let gone = link.is_some_and(|link| link.next(false).is_err());
        let text = "this command was ended while the other members of the gang were waited for";
        gone.then(|| Failure { kind: FailureKind::FrontGone, ..Failure::new(Exit::Internal, text) })
    };
    let say = |text: String| {
        tracing::info!("{text}");
        if let Some(link) = link {
            link.tell(&Tell::Warning { text });
        }
    };
    let fds = link.iter().map(|link| link.as_fd()).chain([signals.as_fd(), started.bell.as_fd()]).collect();
    let meanwhile = Meanwhile { fds, is_over: &is_over, say: &say };
    let key = added.as_ref().map(|added| added.key().clone());
    let seat = gather(&Plan { store, place, image, meets: false, key }, &meanwhile)?;
    started.all_there();
    fault::point("gang-gathered");
    if GangFolder::open(store, &place.name)?.is_none() {
        return Err(Failure::new(Exit::NotFound, format!("the folder of gang {} was removed", place.name)));
    }
    let guard = guard_of((place.protect, image), job, &seat, &folder, &say)?;
    Ok(Some(Membership { seat, folder, added, guard }))
}

/// What the hosts keep of each other's images, if they are to.
///
/// # Errors
/// They cannot, and the program has not run yet; a restart goes on without.
fn guard_of(
    (protect, image): (Option<Protection>, Option<u64>),
    job: &Job,
    seat: &Arc<Seat>,
    folder: &GangFolder,
    say: &dyn Fn(String),
) -> Result<Option<Arc<Guard>>, Failure> {
    let Some(protection) = protect else { return Ok(None) };
    match protection.groups(&seat.hosts()) {
        Ok(_) => Guard::new(protection, job, seat, folder).map(Some),
        Err(why) if image.is_none() => Err(Failure::new(Exit::Refused, format!("--protect {why}"))),
        Err(why) => {
            say(format!("images are not protected from now on: --protect {why}"));
            Ok(None)
        }
    }
}

/// Of the leader of an open gang: the members that were added to it, as the image has them.
fn added(folder: &GangFolder, place: &GangPlace, image: Option<u64>) -> Result<Option<Arc<Added>>, Failure> {
    if !place.open || !place.is_leader() {
        return Ok(None);
    }
    let added = match image {
        Some(image) => Added::of_image(&folder.image(image)?, &place.hosts)?,
        None => Added::new()?,
    };
    Ok(Some(Arc::new(added)))
}

/// The members that are restarted by ssh.
struct Started {
    all: Mutex<Vec<Arc<Ssh>>>,
    /// Rung when one has ended before its member was there.
    bell: Arc<Bell>,
    failed: Arc<Mutex<Option<String>>>,
}

impl Started {
    fn new() -> Result<Started, Failure> {
        let bell = Arc::new(Bell::new().map_err(|error| Failure::system("eventfd", &error))?);
        Ok(Started { all: Mutex::default(), bell, failed: Arc::default() })
    }

    fn restart(&self, added: &Added, of: (&Store, &GangPlace), again: Again<'_>) -> Result<(), Failure> {
        for (member, Remote { host, options, .. }) in added.all() {
            let (bell, failed) = (Arc::clone(&self.bell), Arc::clone(&self.failed));
            let ended = move |why: String| {
                tracing::info!("{why}");
                failed.lock().get_or_insert(why);
                bell.ring();
            };
            self.all.lock().push(ssh::start(of, (member, &host, &options), Task::Restart(&again), ended)?);
        }
        Ok(())
    }

    fn all_there(&self) {
        self.all.lock().iter().for_each(|ssh| ssh.is_there());
    }
}

impl Drop for Started {
    /// Those whose members are not there are not waited for any more.
    fn drop(&mut self) {
        self.all.lock().iter().for_each(|ssh| ssh.end());
    }
}

/// This member's part of a restart is done, or has failed: then all others' have.
///
/// # Errors
/// As its part; one that may succeed if all try again says so.
pub fn restarted(
    context: &JobContext,
    round: Option<&Round>,
    rebuilt: Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(round) = round else { return rebuilt };
    if let Err(failure) = &rebuilt {
        let is_transient = failure.kind == FailureKind::Transient;
        let kind = if is_transient { FailedKind::Again } else { FailedKind::Other };
        round.fail(failure.message.clone(), kind);
        context.gang.iter().filter(|gang| gang.is_leader()).for_each(|gang| gang.folder.withdraw());
    }
    let why = round.failure().filter(|why| why.kind == FailedKind::Again);
    round.end();
    rebuilt.map_err(|failure| match why {
        Some(_) => Failure { kind: FailureKind::Transient, ..failure },
        None => failure,
    })
}

/// The images that no rule removes, if the job is a member of a gang.
///
/// # Errors
/// They are not known: then nothing may be removed.
pub fn needed(context: &JobContext) -> Result<Needed, Failure> {
    let Some(gang) = &context.gang else { return Ok(Needed::default()) };
    let encoded = gang.guard.as_ref().and_then(|guard| guard.under_way());
    Ok(Needed { encoded, ..gang.folder.needed_of(gang.seat.place().member)? })
}

/// Tells the other members that this one has no image, and says whose fault it is.
pub fn failed(round: &Round, error: CheckpointError) -> CheckpointError {
    let kind = match &error {
        CheckpointError::Refused(_) => FailedKind::Refused,
        CheckpointError::Full(_) => FailedKind::Full,
        CheckpointError::Again(_) => FailedKind::Again,
        _ => FailedKind::Other,
    };
    round.fail(error.line(), kind);
    let own = round.seat().place().member;
    let why = round.failure();
    round.end();
    match why {
        // The first reason counts, for all; and whether all try again.
        Some(why) if why.member != Some(own) || why.kind == FailedKind::Again => of_failed(&why),
        _ => error,
    }
}

/// In the words of a checkpoint.
pub fn of_failed(why: &Failed) -> CheckpointError {
    match why.kind {
        FailedKind::Again => CheckpointError::Again(why.to_string()),
        kind => CheckpointError::Elsewhere { refused: kind == FailedKind::Refused, line: why.to_string() },
    }
}

/// What a member says of its image, and of its part of the redundancy.
#[derive(Serialize, Deserialize)]
struct Committed {
    image: MemberImage,
    offer: Option<Result<Offer, String>>,
}

fn own_part(context: &JobContext, gang: &Membership, epoch: Epoch) -> Result<Committed, String> {
    let manifest = context.job.folder().manifest(epoch).map_err(|error| error.to_string())?;
    let (member, host) = (gang.seat.place().member, gang.seat.host().to_owned());
    let digest = digest_of(&manifest);
    let image = MemberImage { member, host, epoch, run_ns: context.run_ns, digest, ssh: None };
    let offer = |guard: &Arc<Guard>| guard.offer(&context.job, &context.lock, (epoch, &manifest));
    Ok(Committed { image, offer: gang.guard.as_ref().map(offer) })
}

/// All have committed their images: the leader makes an image of the gang. Its number.
///
/// # Errors
/// A member has no image, was lost, or the image of the gang could not be made: there is none, as far as is known.
pub fn name_image(
    context: &JobContext,
    round: &Round,
    epoch: Epoch,
    is_last: bool,
) -> Result<u64, CheckpointError> {
    let made = context.gang.as_ref().ok_or("it is no member of a gang".to_owned());
    let made = made.and_then(|gang| make_image(context, gang, round, (epoch, is_last)));
    let failed = made.as_ref().err().map(|why| failed(round, CheckpointError::Failed(why.clone())));
    round.end();
    match (made, failed) {
        (Ok(image), _) => {
            fault::point("gang-known");
            Ok(image)
        }
        (Err(_), Some(failed)) => Err(failed),
        (Err(why), None) => Err(CheckpointError::Failed(why)),
    }
}

fn make_image(
    context: &JobContext,
    gang: &Membership,
    round: &Round,
    (epoch, is_last): (Epoch, bool),
) -> Result<u64, String> {
    let own = own_part(context, gang, epoch)?;
    let leads = leads(gang, round);
    if gang.is_leader() {
        takeover::clear(&gang.folder);
        // Without it the leader's loss costs this image, which is no reason to have none.
        let written = Parts::of(&gang.folder, round.mark()).and_then(|parts| {
            parts.write(&own.image, Some(leads.clone())).map_err(|failure| failure.message)
        });
        if let Err(why) = written {
            tracing::warn!("no member can take over from this one in this checkpoint: {why}");
        }
    }
    fault::point("gang-committed");
    let text = serde_json::to_vec(&own).map_err(|error| error.to_string())?;
    let said = match round.meet(Phase::Committed, &text, STORING) {
        Ok(said) => said,
        Err(why) => return take_over(gang, round, &own.image, (&why, is_last)),
    };
    let said: Result<Vec<Committed>, _> = said.iter().map(|one| serde_json::from_slice(one)).collect();
    let said = said.map_err(|error| format!("what a member says of its image: {error}"))?;
    let mut named = (0, String::new());
    if gang.is_leader() {
        fault::point("gang-all-committed");
        named = takeover::publish(&gang.folder, said.iter().map(|one| one.image.clone()).collect(), &leads)
            .map_err(|failure| failure.message)?;
        takeover::clear(&gang.folder);
        fault::point("gang-named");
    }
    let text = serde_json::to_vec(&named).map_err(|error| error.to_string())?;
    let heard = match round.meet(Phase::Named, &text, NAMING) {
        Ok(heard) => heard,
        Err(why) => return take_over(gang, round, &own.image, (&why, is_last)),
    };
    let first = heard.first().and_then(|text| serde_json::from_slice::<(u64, String)>(text).ok());
    let (number, id) = first.ok_or("the leader has not said which image of the gang it made")?;
    if let Some(guard) = &gang.guard {
        let said: Vec<Said> =
            said.into_iter().map(|one| (one.offer, one.image.host, one.image.epoch.0)).collect();
        guard.prepare((&context.job, &context.lock), (number, &id), &said, is_last);
    }
    Ok(number)
}

/// What the leader knows alone.
fn leads(gang: &Membership, round: &Round) -> Leads {
    let of = |member| gang.added.as_ref().and_then(|added| added.of(member));
    let key = gang.added.as_ref().map(|added| added.key().clone());
    Leads { reached: (0..round.members()).map(of).collect(), key }
}

/// The leader was lost when this member had committed: if all others have, too, they make the image of the gang. `why`:
/// in what words the leader was lost; `is_last`: the program was to be ended.
///
/// # Errors
/// They have not, or not yet: then the last one makes it. Or the program was to be ended: the leader's may run on, so
/// this one does.
fn take_over(
    gang: &Membership,
    round: &Round,
    own: &MemberImage,
    (why, is_last): (&GangError, bool),
) -> Result<u64, String> {
    // A leader that says no is there, and all do as it says.
    if gang.is_leader() || why.member != Some(0) || !gang.seat.has_lost_leader() {
        return Err(why.to_string());
    }
    let made = Parts::of(&gang.folder, round.mark()).and_then(|parts| {
        let made = parts.write(own, None).and_then(|()| parts.make_image());
        made.map_err(|failure| failure.message)
    });
    match made {
        Ok(Some(number)) => {
            tracing::info!(
                "{why}; image {number} of the gang is there all the same: all have committed theirs"
            );
            if is_last { Err(why.to_string()) } else { Ok(number) }
        }
        // The leader may have made it before it was lost.
        Ok(None) if !is_last => takeover::names(&gang.folder, own).ok_or_else(|| why.to_string()),
        Ok(None) => Err(why.to_string()),
        Err(error) => Err(format!("{why}; {error}")),
    }
}

/// Images of the gang of which this member's part is gone, by its rules, are none any more. Of the leader.
pub fn forget_removed(context: &JobContext) {
    // A lower tier may have what the store has not.
    let is_to = |gang: &&Membership| gang.is_leader() && context.cascade.is_none();
    let Some(gang) = context.gang.as_ref().filter(is_to) else { return };
    let Ok(numbers) = gang.folder.images() else { return };
    for number in numbers.iter().rev().skip(1).rev() {
        let Ok(image) = gang.folder.image(*number) else { continue };
        let Some(own) = image.members.first() else { continue };
        if matches!(context.job.image(own.epoch), Ok(None))
            && let Err(error) = gang.folder.remove(*number)
        {
            tracing::warn!("image {number} of the gang: {error}");
        }
    }
}

/// Whether a round that has failed is begun anew; with the new round. Of the leader.
pub fn again(
    context: &JobContext,
    request: &CheckpointRequest,
    error: &CheckpointError,
    begun: Instant,
) -> Option<Arc<Round>> {
    let gang = context.gang.as_ref().filter(|gang| gang.is_leader())?;
    if !matches!(error, CheckpointError::Again(_)) || begun.elapsed() > BUSY {
        return None;
    }
    tracing::info!("{}; the gang tries again", error.line());
    std::thread::sleep(PAUSE);
    Round::begin(&gang.seat, request.options.stop, &request.options.changes.wishes()).ok()
}
