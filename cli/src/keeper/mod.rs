//! Device memory that a process of its own keeps for the programs of a job (docs/cuda.md, "A keeper").
//!
//! The driver's checkpoint brings to the host all that a process has on devices. What a keeper has it does not: the
//! program maps it, unmaps it for the checkpoint, and maps it again, and no byte of it moves meanwhile. What has
//! changed since the last image is copied on the device, into the GPU cache, and from there into the image while the
//! program runs.
//!
//! * [`process`]: `holdfast __keeper`, the process.
//! * [`client`]: the agent's end of it, with `moving`: what goes through the ring, and `ahead`: what is read before it
//!   is asked for; [`messages`]: what they say to each other; `windows`: the ring.
//! * [`blocks`]: the memory, and what a checkpoint and a restart do with it; `back`: what a rollback does; [`bank`]: on
//!   one device; [`cache`]: the GPU cache, as `tiers/policy` has it; [`slots`]: numbers of chunks;
//!   [`packer`]: what is packed before it leaves the device; `reading`: what was taken, for the agent.
//! * `held`: memory for processes that are going to be restored.
//! * [`probe`]: whether the driver lets all that work.

mod ahead;
mod back;
pub mod bank;
pub mod blocks;
pub mod cache;
pub mod client;
mod held;
pub mod messages;
mod moving;
pub mod packer;
pub mod probe;
pub mod process;
mod reading;
mod runs;
pub mod slots;
mod windows;
