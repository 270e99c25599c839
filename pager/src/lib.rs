//! Epochs, dirty sets, the bound on copies, access history and flush order: pure algorithms, no system calls.
//!
//! After Nicolae and Cappello, "AI-Ckpt: leveraging memory access patterns for adaptive asynchronous incremental
//! checkpointing" (HPDC'13): how the first write to a page went after the last cut says in which order the pages of
//! this one should be stored. The defects of the algorithms as printed there are avoided; each module says which.
//!
//! * [`access`]: what an epoch knew of the first write to each page, in two bytes.
//! * [`recorder`]: the epoch that runs: what is written, copied, stored; becomes an [`access::EpochAccess`].
//! * [`history`]: the last epochs, and which of them predicts best (the program's period).
//! * [`prediction`]: what the history says of the next epoch.
//! * [`Rank`]: where a page comes in the order of the flush. [`order`]: how pages are joined to runs in it.
//! * [`queue`]: the pages that are still to be stored, shared by flush workers, watcher and fault handler.
//! * [`intake`]: what a pre-copy stores, so that little of it has to be stored again.
//! * [`budget`]: when the program must be held because it copies too much.
//! * [`mod@plan`]: whether to copy inside the stop or to fork, and what to keep out of the clone.
//!
//! Invariants: no clock (time comes in as microseconds since the cut), no thread, no system call, no unsafe. Only
//! [`queue::FlushQueue`] is shared between threads; everything else has one owner.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod access;
mod agreement;
pub mod budget;
mod chunk;
pub mod history;
pub mod intake;
pub mod order;
pub mod plan;
pub mod prediction;
pub mod queue;
mod rank;
pub mod recorder;

pub use access::{Access, EpochAccess, PageAccess, Tick};
pub use budget::{Budget, CowLimit, CowLimitError, Verdict};
pub use history::{History, HistoryError, Period};
pub use intake::Intake;
pub use order::Order;
pub use plan::{Engine, Plan, plan};
pub use prediction::Prediction;
pub use queue::FlushQueue;
pub use rank::Rank;
pub use recorder::Recorder;
