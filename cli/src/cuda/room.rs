//! Free memory of devices around the driver's Checkpoint and Restore. Both fail for good where there is too little
//! (driver 580.159.04: docs/cuda.md), so the agent asks before it calls.
//!
//! Used by [`super::driver`]. What a process's Restore takes is what its Checkpoint has set free on each device; that a
//! keeper holds meanwhile, where there is one. What other programs give or take in between goes in, too: it is an
//! estimate, and a Restore that has waited long enough is called.
//! Fails by: words. Where nothing says how much is free (no NVML) all goes on as if there were enough.

use super::messages::DeviceRoom;
use crate::report;
use holdfast_image::cuda::{DeviceNeed, uuid};
use holdfast_sys::cuda::DevicePair;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// What a device must have free for a Checkpoint. With less than 2 MiB it fails; how much is enough is not known, so
/// this is some more.
pub const LEAST: u64 = 64 << 20;
/// How long a Restore waits for memory of its devices: seconds.
const WAIT: &str = "HOLDFAST_CUDA_ROOM";
const LONGEST: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Says something to the user.
pub type Voice = Arc<dyn Fn(String) + Send + Sync>;

/// Who can have device memory for a process that is going to be restored.
pub trait Holder: Send + Sync {
    /// Has so much of a device.
    ///
    /// # Errors
    /// There is not so much.
    fn hold(&self, pid: i32, uuid: [u8; 16], bytes: u64) -> Result<(), String>;
    /// Gives up what it has for that process.
    fn give(&self, pid: i32);
}

/// See the head of the file.
pub struct Rooms {
    /// By process.
    needs: Mutex<BTreeMap<i32, Vec<DeviceNeed>>>,
    holder: Mutex<Option<Arc<dyn Holder>>>,
    voice: Voice,
}

/// A device that has too little.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Short {
    uuid: [u8; 16],
    free: u64,
    need: u64,
}

impl Short {
    /// In words.
    pub fn text(&self) -> String {
        let (free, need) = (report::size(self.free), report::size(self.need));
        format!("device {} has {free} of memory free, and {need} are needed", uuid(&self.uuid))
    }
}

impl Rooms {
    /// Nothing is known yet.
    pub fn new(voice: Voice) -> Rooms {
        Rooms { needs: Mutex::default(), holder: Mutex::default(), voice }
    }

    /// Who holds memory meanwhile.
    pub fn held_by(&self, holder: Option<Arc<dyn Holder>>) {
        *self.holder.lock() = holder;
    }

    /// What Restore of a process is going to take.
    pub fn needs(&self, pid: i32) -> Vec<DeviceNeed> {
        self.needs.lock().get(&pid).cloned().unwrap_or_default()
    }

    /// The same, as an image has it.
    pub fn are(&self, pid: i32, needs: Vec<DeviceNeed>) {
        self.needs.lock().insert(pid, needs);
    }

    /// A process was checkpointed: what that has set free is to be there for its Restore.
    pub fn freed(&self, pid: i32, before: &[DeviceRoom], after: &[DeviceRoom]) {
        let needs = difference(before, after);
        if let Some(holder) = self.holder.lock().as_ref() {
            for need in &needs {
                if let Err(why) = holder.hold(pid, need.uuid, need.bytes) {
                    tracing::info!("no memory is held for process {pid}: {why}");
                }
            }
        }
        self.are(pid, needs);
    }

    /// Waits until a process can be restored: until `ask` says that what it needs is free, or for some time.
    pub fn wait_for(&self, pid: i32, onto: &[DevicePair], ask: impl Fn() -> Option<Vec<DeviceRoom>>) {
        if let Some(holder) = self.holder.lock().as_ref() {
            holder.give(pid);
        }
        let needs = self.needs(pid);
        if let Some(short) = self.wait(&needs, onto, &format!("process {pid}"), ask) {
            let text = short.text();
            tracing::warn!("process {pid} is restored although {text}: it has waited long enough");
        }
    }

    /// The same for all that an image has. What is missing in the end.
    pub fn wait(
        &self,
        needs: &[DeviceNeed],
        onto: &[DevicePair],
        who: &str,
        ask: impl Fn() -> Option<Vec<DeviceRoom>>,
    ) -> Option<Short> {
        let (begun, limit) = (Instant::now(), longest());
        let mut told = false;
        loop {
            let short = ask().and_then(|rooms| lacking(&rooms, needs, onto))?;
            if begun.elapsed() >= limit {
                return Some(short);
            }
            if !told {
                let seconds = limit.as_secs_f32();
                (self.voice)(format!(
                    "{who} waits for device memory, {seconds} s at most ({WAIT}): {}; end what else uses it",
                    short.text()
                ));
                told = true;
            }
            thread::sleep(LOOK);
        }
    }
}

fn longest() -> Duration {
    let text = std::env::var(WAIT).ok();
    let seconds = text.and_then(|text| text.parse::<f64>().ok()).filter(|s| (0.0..=86_400.0).contains(s));
    seconds.map_or(LONGEST, Duration::from_secs_f64)
}

/// What has become free.
fn difference(before: &[DeviceRoom], after: &[DeviceRoom]) -> Vec<DeviceNeed> {
    let of = |now: &DeviceRoom| {
        let then = before.iter().find(|room| room.uuid == now.uuid)?;
        let bytes = now.free.saturating_sub(then.free);
        (bytes > 0).then_some(DeviceNeed { uuid: now.uuid, bytes })
    };
    after.iter().filter_map(of).collect()
}

/// The sum by device.
pub fn sum(needs: impl Iterator<Item = DeviceNeed>) -> Vec<DeviceNeed> {
    let mut all = BTreeMap::<[u8; 16], u64>::new();
    for DeviceNeed { uuid, bytes } in needs {
        let place = all.entry(uuid).or_default();
        *place = place.saturating_add(bytes);
    }
    all.into_iter().map(|(uuid, bytes)| DeviceNeed { uuid, bytes }).collect()
}

/// The first device that has less than is needed; `onto`: which device takes the place of which.
fn lacking(rooms: &[DeviceRoom], needs: &[DeviceNeed], onto: &[DevicePair]) -> Option<Short> {
    needs.iter().find_map(|need| {
        let pair = onto.iter().find(|[old, _]| *old == need.uuid);
        let uuid = pair.map_or(need.uuid, |[_, new]| *new);
        let free = rooms.iter().find(|room| room.uuid == uuid)?.free;
        (free < need.bytes).then_some(Short { uuid, free, need: need.bytes })
    })
}

/// Whether a device that a process uses is too full for a Checkpoint. `numbers`: of the files of devices that it has
/// mapped, none: not known; `more`: bytes that are going to be free by then.
pub fn too_full(rooms: &[DeviceRoom], numbers: &[u32], more: u64) -> Option<String> {
    let is_used =
        |room: &&DeviceRoom| numbers.is_empty() || room.minor.is_none_or(|minor| numbers.contains(&minor));
    let short = |room: &&DeviceRoom| room.free.saturating_add(more) < LEAST;
    let room = rooms.iter().filter(is_used).find(short)?;
    let full = Short { uuid: room.uuid, free: room.free, need: LEAST };
    Some(format!(
        "{} for the driver's checkpoint, which would fail there, and at each later try: free device memory of the \
         program, or end what else uses the device",
        full.text()
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(number: u8, free: u64) -> DeviceRoom {
        DeviceRoom { uuid: [number; 16], minor: Some(number.into()), free: free * MIB, total: 1 << 40 }
    }

    fn need(number: u8, bytes: u64) -> DeviceNeed {
        DeviceNeed { uuid: [number; 16], bytes: bytes * MIB }
    }

    #[test]
    fn what_a_restore_takes_is_what_has_become_free() {
        let before = [room(0, 100), room(1, 50)];
        assert_eq!(difference(&before, &[room(0, 700), room(1, 40), room(2, 9)]), [need(0, 600)]);
        assert_eq!(sum([need(1, 2), need(0, 3), need(1, 4)].into_iter()), [need(0, 3), need(1, 6)]);
    }

    #[test]
    fn a_device_that_has_too_little_is_found_where_the_process_is_to_go() {
        let rooms = [room(0, 100), room(1, 50)];
        assert_eq!(lacking(&rooms, &[need(0, 100), need(1, 50)], &[]), None);
        let short = lacking(&rooms, &[need(0, 60)], &[[[0; 16], [1; 16]]]).unwrap();
        assert!(
            short.text().ends_with("has 50.0 MiB of memory free, and 60.0 MiB are needed"),
            "{}",
            short.text()
        );
        // What nothing is known of is tried.
        assert_eq!(lacking(&rooms, &[need(7, 60)], &[]), None);
    }

    #[test]
    fn only_devices_that_are_used_are_too_full() {
        let rooms = [room(0, 1), room(1, 5000)];
        assert!(
            too_full(&rooms, &[0], 0).unwrap().contains("64.0 MiB are needed for the driver's checkpoint")
        );
        assert!(too_full(&rooms, &[], 0).is_some() && too_full(&rooms, &[0, 1], 0).is_some());
        assert_eq!(too_full(&rooms, &[1], 0), None);
        assert_eq!(too_full(&rooms, &[0], 63 * MIB), None);
    }

    #[test]
    fn a_restore_waits_for_room_and_not_for_ever() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let says = Arc::clone(&said);
        let rooms = Rooms::new(Arc::new(move |text| says.lock().push(text)));
        let asked = Mutex::new(0);
        let ask = || {
            *asked.lock() += 1;
            Some(vec![room(0, if *asked.lock() < 3 { 10 } else { 20 })])
        };
        assert_eq!(rooms.wait(&[need(0, 20)], &[], "process 7", ask), None);
        assert_eq!(*asked.lock(), 3);
        assert!(said.lock().len() == 1 && said.lock()[0].starts_with("process 7 waits"), "{:?}", said.lock());
        assert_eq!(rooms.wait(&[need(0, 20)], &[], "x", || None), None, "nothing is known");
    }
}
