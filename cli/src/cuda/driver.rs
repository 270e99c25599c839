//! The agent's end of the CUDA driver: one caller, started when it is needed first, replaced when it is lost.
//!
//! Used by the checkpoint thread, by `check`, and at the end of a restart. What must hold: no call takes longer than
//! its deadline and the start of a caller; after a deadline, or the end of the caller, the next call is made by a fresh
//! one.

use super::client::Caller;
use super::messages::{DeviceRoom, Facts, Question};
use super::room::{Rooms, Voice, too_full};
use crate::log;
use holdfast_image::cuda::DeviceNeed;
use holdfast_process::cuda::driver::names;
use holdfast_process::cuda::{Cause, CudaState, DriverCheckpoint, DriverError, uses};
use holdfast_sys::cuda::DevicePair;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the work of a process on devices may take to end: seconds.
const LOCK: &str = "HOLDFAST_CUDA_LOCK";
/// How long a checkpoint may take: seconds.
const DEADLINE: &str = "HOLDFAST_CUDA_DEADLINE";
/// What is long for a question, and for what undoes: a driver that needs more has hung.
const QUESTION: Duration = Duration::from_secs(30);
const UNDO: Duration = Duration::from_secs(120);
/// Half of the slowest rate that a driver was seen to move device memory at (72 GB in ten minutes): bytes in a second.
const SLOWEST_RATE: u64 = 60 << 20;
/// What the driver may take over the time that it was told.
const MARGIN: Duration = Duration::from_secs(10);

/// How long calls may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// For a lock: the driver itself gives up then.
    pub lock: Duration,
    /// For a checkpoint.
    pub checkpoint: Duration,
    /// The user has said that.
    pub is_chosen: bool,
}

impl Patience {
    /// As the environment says. Ten minutes for a checkpoint: 72 GB of a device were seen to take that (docs/cuda.md).
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Patience {
        let chosen = |name| {
            let read = variable(name).and_then(|text| text.parse::<f64>().ok());
            read.filter(|seconds| (0.001..=86_400.0).contains(seconds)).map(Duration::from_secs_f64)
        };
        let (lock, checkpoint) = (chosen(LOCK), chosen(DEADLINE));
        Patience {
            lock: lock.unwrap_or(Duration::from_secs(10)),
            checkpoint: checkpoint.unwrap_or(Duration::from_secs(600)),
            is_chosen: checkpoint.is_some(),
        }
    }

    /// For a checkpoint or a restore of what has so much on devices, where the slowest of the last ones took `slowest`.
    fn moving(&self, bytes: u64, slowest: Duration) -> Duration {
        if self.is_chosen {
            return self.checkpoint;
        }
        self.checkpoint.max(Duration::from_secs(bytes / SLOWEST_RATE)).max(slowest * 4)
    }

    /// For what takes no time.
    fn question(&self) -> Duration {
        QUESTION.min(self.checkpoint)
    }
}

/// See the head of the file.
pub struct AgentDriver {
    library: PathBuf,
    patience: Patience,
    caller: Mutex<Option<Caller>>,
    /// Onto which devices a restore goes; none: onto those that the process had.
    onto: Mutex<Vec<DevicePair>>,
    rooms: Rooms,
    /// The longest checkpoint or restore up to now.
    slowest: Mutex<Duration>,
}

impl AgentDriver {
    /// Of this library; nothing is started yet. `voice`: what the user is told by.
    pub fn new(library: &Path, patience: Patience, voice: Voice) -> AgentDriver {
        let (library, rooms) = (library.to_owned(), Rooms::new(voice));
        let (caller, onto, slowest) = Default::default();
        AgentDriver { library, patience, caller, onto, rooms, slowest }
    }

    /// What is known of free memory.
    pub fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    /// How much memory of each device is free; `None`: that is not to be had.
    pub fn room(&self) -> Option<Vec<DeviceRoom>> {
        let mut place = self.caller.lock();
        let room = self.started(&mut place).and_then(|caller| {
            caller.room(self.patience.question()).unwrap_or_else(|cause| Err(cause.to_string()))
        });
        room.inspect_err(|why| tracing::debug!("free memory of devices is not known: {why}")).ok()
    }

    /// Whether a device that a process uses is too full for a Checkpoint, in words. `more`: bytes that are going to be
    /// free by then.
    pub fn too_full(&self, pid: i32, more: u64) -> Option<String> {
        too_full(&self.room()?, &uses::device_numbers(pid), more)
    }

    /// Waits until all that an image needs is free.
    ///
    /// # Errors
    /// It is not, in words.
    pub fn wait_for_room(&self, needs: &[DeviceNeed]) -> Result<(), String> {
        let onto = self.onto.lock().clone();
        match self.rooms.wait(needs, &onto, "the restart", || self.room()) {
            Some(short) => Err(format!("{}; end what else uses it", short.text())),
            None => Ok(()),
        }
    }

    /// Restores go onto these devices from now on; none: onto those that a process had.
    pub fn restore_onto(&self, pairs: Vec<DevicePair>) {
        *self.onto.lock() = pairs;
    }

    /// The library.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// What is known of the driver; with it a caller is running.
    ///
    /// # Errors
    /// Why there is none, or why it is of no use.
    pub fn facts(&self) -> Result<Facts, String> {
        let mut place = self.caller.lock();
        Ok(self.started(&mut place)?.facts.clone())
    }

    fn started<'a>(&self, place: &'a mut Option<Caller>) -> Result<&'a mut Caller, String> {
        // One that was lost is killed here.
        let usable = place.take().filter(Caller::is_usable);
        let caller = match usable {
            Some(caller) => caller,
            None => {
                let log = log::again().map_err(|failure| failure.message)?;
                let caller = Caller::start(&self.library, log)?;
                let (pid, facts) = (caller.pid, &caller.facts);
                tracing::info!("process {pid} calls the CUDA driver, {}: {facts}", self.library.display());
                caller
            }
        };
        if !caller.facts.can_checkpoint {
            let version = holdfast_image::cuda::version(caller.facts.api_version);
            *place = Some(caller);
            return Err(format!(
                "its driver, for CUDA {version}, cannot checkpoint: driver 570 or later, for CUDA 12.8, can"
            ));
        }
        Ok(place.insert(caller))
    }

    fn ask(
        &self,
        function: &'static str,
        question: Question,
        deadline: Duration,
    ) -> Result<i32, DriverError> {
        let mut place = self.caller.lock();
        let is_only_asked = matches!(question, Question::State { .. } | Question::RestoreThread { .. });
        let mut ask = |question| match self.started(&mut place) {
            Ok(caller) => caller.ask(question, deadline),
            Err(why) => Err(Cause::NoCaller(why)),
        };
        let mut asked = ask(question.clone());
        if is_only_asked && asked == Err(Cause::CallerEnded) {
            // It may have ended long ago, unnoticed: nothing was under way.
            asked = ask(question);
        }
        asked.map_err(|cause| {
            if !matches!(cause, Cause::Code(_)) {
                tracing::warn!("{function}: {cause}");
            }
            DriverError { function, cause }
        })
    }
}

impl AgentDriver {
    /// Takes note of how long a call took that succeeded.
    fn timed(&self, call: impl FnOnce() -> Result<i32, DriverError>) -> Result<i32, DriverError> {
        let begun = Instant::now();
        let result = call()?;
        let mut slowest = self.slowest.lock();
        *slowest = begun.elapsed().max(*slowest);
        Ok(result)
    }
}

/// What is in use of these devices: at most so much is the process's.
fn used(rooms: &[DeviceRoom], numbers: &[u32]) -> u64 {
    let is_used = |room: &&DeviceRoom| room.minor.is_none_or(|minor| numbers.contains(&minor));
    let of = rooms.iter().filter(is_used);
    of.fold(0, |sum, room| sum.saturating_add(room.total.saturating_sub(room.free)))
}

impl DriverCheckpoint for AgentDriver {
    fn state(&self, pid: i32) -> Result<CudaState, DriverError> {
        self.ask(names::STATE, Question::State { pid }, self.patience.question()).map(CudaState::from)
    }
    fn restore_thread(&self, pid: i32) -> Result<i32, DriverError> {
        self.ask(names::RESTORE_THREAD, Question::RestoreThread { pid }, self.patience.question())
    }
    fn lock(&self, pid: i32) -> Result<(), DriverError> {
        let Patience { lock, checkpoint, .. } = self.patience;
        // 0 would be no limit.
        let timeout_ms = u32::try_from(lock.as_millis()).unwrap_or(u32::MAX).max(1);
        let deadline = lock + checkpoint.min(MARGIN);
        self.ask(names::LOCK, Question::Lock { pid, timeout_ms }, deadline).map(drop)
    }
    fn checkpoint(&self, pid: i32) -> Result<(), DriverError> {
        let before = self.room();
        if let Some(why) = before.as_ref().and_then(|rooms| too_full(rooms, &uses::device_numbers(pid), 0)) {
            return Err(DriverError { function: names::CHECKPOINT, cause: Cause::NoRoom(why) });
        }
        let used = before.as_deref().map_or(0, |rooms| used(rooms, &uses::device_numbers(pid)));
        let deadline = self.patience.moving(used, *self.slowest.lock());
        self.timed(|| self.ask(names::CHECKPOINT, Question::Checkpoint { pid }, deadline))?;
        if let Some((before, after)) = before.zip(self.room()) {
            self.rooms.freed(pid, &before, &after);
        }
        Ok(())
    }
    fn restore(&self, pid: i32) -> Result<(), DriverError> {
        let onto = self.onto.lock().clone();
        let bytes = self.rooms.needs(pid).iter().fold(0_u64, |sum, need| sum.saturating_add(need.bytes));
        let deadline = self.patience.moving(bytes, *self.slowest.lock()).max(UNDO);
        self.rooms.wait_for(pid, &onto, || self.room());
        self.timed(|| self.ask(names::RESTORE, Question::Restore { pid, onto }, deadline)).map(drop)
    }
    fn unlock(&self, pid: i32) -> Result<(), DriverError> {
        self.ask(names::UNLOCK, Question::Unlock { pid }, self.patience.question()).map(drop)
    }
    fn over(&self, pid: i32) {
        if let Some(caller) = self.caller.lock().as_ref() {
            caller.tell(Question::Over { pid });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_what_the_environment_says() {
        let of = |lock: &'static str, deadline: &'static str| {
            Patience::of_environment(move |name| {
                let text = if name == LOCK { lock } else { deadline };
                (!text.is_empty()).then(|| text.to_owned())
            })
        };
        let usual = Patience {
            lock: Duration::from_secs(10),
            checkpoint: Duration::from_secs(600),
            is_chosen: false,
        };
        assert_eq!(of("", ""), usual);
        assert_eq!(of("0", "soon"), usual);
        assert_eq!(of("nan", "-1"), usual);
        let short = Patience {
            lock: Duration::from_millis(500),
            checkpoint: Duration::from_secs(3),
            is_chosen: true,
        };
        assert_eq!(of("0.5", "3"), short);
    }
    #[test]
    fn deadlines_follow_what_is_on_devices_and_how_long_it_took() {
        let (few, long) = (Duration::from_secs(1), Duration::from_secs(500));
        let usual = Patience::of_environment(|_| None);
        assert_eq!(usual.moving(1 << 30, few), Duration::from_secs(600));
        // 141 GiB at the slowest rate that was seen would take 20 minutes.
        assert!(usual.moving(141 << 30, few) > Duration::from_secs(1200));
        assert_eq!(usual.moving(1 << 30, long), long * 4);
        let chosen = Patience::of_environment(|name| (name == DEADLINE).then(|| "3".into()));
        assert_eq!(chosen.moving(141 << 30, long), Duration::from_secs(3));
    }

    #[test]
    fn what_is_in_use_of_the_devices_of_a_process_is_counted() {
        let room = |minor, free, total| DeviceRoom { minor, free, total, uuid: [0; 16] };
        let rooms = [room(Some(0), 1, 10), room(Some(1), 5, 10), room(None, 8, 10)];
        assert_eq!(used(&rooms, &[0]), 11, "and what may be");
        assert_eq!(used(&[], &[0]), 0);
    }
}
