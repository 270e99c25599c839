//! A CUDA driver without a GPU: `libcuda.so.1` for the tests of Holdfast. Never shipped.
//!
//! Programs that use the driver API run on it unchanged, and their kernels run as PTX on the processor
//! (`holdfast-ptx`). Everything that a checkpoint has to cope with is there: memory of the device that the host cannot
//! touch, streams that run beside the program, and the driver's checkpoint API with its refusals, traps and hangs. It
//! must never be kinder than a driver: what it does has its source beside it, and what no source says is marked as not
//! verified.
//!
//! `table` has all functions; `api` reads arguments; the other files are the driver. `STAND_IN_*` in the environment
//! change it (`settings`).
//!
//! Fails by: results of the driver API. Its threads take no signals, so that the program's handlers run on the
//! program's.

mod api;
mod array;
mod callback;
mod capture;
mod checkpoint;
mod code;
mod command;
mod context;
mod device;
mod entrance;
mod event;
mod graph;
mod graph_memory;
mod handles;
mod image;
mod launch;
mod layout;
mod ledger;
mod memory;
mod module;
mod nvml;
mod pointer;
mod random;
mod settings;
mod shared_device;
mod stream;
mod submit;
mod system;
mod table;
mod texture;
mod vmm;
