//! Whether the host has the memory that device memory needs there: looked up before anything is touched.
//!
//! Called by the agent with the gates closed, before device memory leaves, and by `check` ([`demand`]). What it
//! takes: chunks that libholdfast owns and that have no copy yet, and all that the driver carries, which its checkpoint
//! brings to "system memory" of the process (README of NVIDIA's cuda-checkpoint). Where all of what libholdfast owns
//! would fit nothing more is asked; else its service thread counts, behind the gate, what there is to copy.
//! Fails by: a refusal that has the process, what it needs, what there is, and what to do.

use super::data::{self, DataError, Limits, Owned};
use super::hooks::Hooks;
use crate::refuse;
use holdfast_image::cuda::DeviceMemory;
use holdfast_image::refusal::Refusal;
use holdfast_sys::cgroup::{self, Room};
use holdfast_sys::fault;

/// Left for the cut: buffers of the flush, and the least that is copied of other memory (`cli/src/agent/headroom.rs`).
const MARGIN: u64 = 24 << 20;

/// What of a process is on devices, as its hooks have counted.
pub fn demand(hooks: &Hooks) -> DeviceMemory {
    let (bytes, kept) = Owned::of(hooks).map_or((0, false), |one| (one.bytes(), one.is_kept()));
    let [library, keeper] = if kept { [0, bytes] } else { [bytes, 0] };
    DeviceMemory { library, keeper, driver: data::carried(hooks) }
}

/// Whether there is room for all of these processes.
///
/// # Errors
/// There is not.
pub fn for_all(hooks: &[Hooks], limits: Limits) -> Result<(), Refusal> {
    hooks.iter().try_fold(0_u64, |taken, one| {
        let demand = demand(one);
        let Some(room) = room_of(one.place().0) else { return Ok(taken) };
        let left = room.left().saturating_sub(MARGIN).saturating_sub(taken);
        let measure = || Owned::of(one).map_or(Ok(0), |owned| owned.measure(limits));
        let needed = needed(demand, left, measure);
        match needed {
            Ok(needed) if needed > left => {
                Err(refuse::process(one.place().0, in_words(needed, demand.driver, left, &room)))
            }
            Ok(needed) => Ok(taken.saturating_add(needed)),
            Err(error) => Err(refuse::process(one.place().0, error)),
        }
    })?;
    Ok(())
}

/// The group, or the host, that has least left.
fn room_of(pid: i32) -> Option<Room> {
    let rooms = [cgroup::tightest(pid.cast_unsigned()), cgroup::of_host()];
    let room = rooms.into_iter().flatten().min_by_key(Room::left)?;
    // For tests: a host that has no more than the margin.
    if fault::is_asked("host-full") {
        Some(Room { used: room.limit.saturating_sub(MARGIN), ..room })
    } else {
        Some(room)
    }
}

/// Bytes that a process needs, counted exactly only where all of it would be too much.
fn needed(
    demand: DeviceMemory,
    left: u64,
    measure: impl FnOnce() -> Result<u64, DataError>,
) -> Result<u64, DataError> {
    let most = demand.library.saturating_add(demand.driver);
    if most <= left || demand.library == 0 {
        return Ok(most);
    }
    measure().map(|library| library.saturating_add(demand.driver))
}

fn in_words(needed: u64, carried: u64, left: u64, room: &Room) -> String {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let of_driver = match carried {
        0 => String::new(),
        bytes => format!(" ({} of them carried by the driver)", mib(bytes)),
    };
    let (who, remedy) = match room.group.as_os_str().as_encoded_bytes() {
        b"/" => ("the host".to_owned(), "end something else, or free device memory"),
        _ => (
            format!("its control group {}", room.group.display()),
            "raise the limit, end something else in the group, or free device memory",
        ),
    };
    format!(
        "its device memory needs {} MiB of the host's memory{of_driver}, and {who} has {} MiB for it: {remedy}",
        mib(needed),
        left >> 20
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn it_is_counted_only_where_all_of_it_would_be_too_much() {
        let demand = DeviceMemory { library: 100, keeper: 7, driver: 20 };
        let never = || unreachable!("nothing is to be counted");
        assert_eq!(needed(demand, 120, never), Ok(120));
        assert_eq!(needed(demand, 119, || Ok(30)), Ok(50));
        assert_eq!(needed(DeviceMemory { library: 0, ..demand }, 5, never), Ok(20));
    }

    #[test]
    fn what_is_refused_has_need_rest_and_remedy() {
        let room = |group: &str| Room { group: group.into(), limit: 1 << 40, used: 1 << 39 };
        let told = in_words(100 << 20, 0, 30 << 20, &room("/"));
        assert!(
            told.starts_with("its device memory needs 100 MiB of the host's memory, and the host has 30 MiB")
        );
        let told = in_words(100 << 20, 9 << 20, 30 << 20, &room("/sys/fs/cgroup/a"));
        assert!(
            told.contains("(9 of them carried by the driver), and its control group /sys/fs/cgroup/a has")
        );
        assert!(told.ends_with("raise the limit, end something else in the group, or free device memory"));
    }
}
