//! Who is of the job, and its processes as they are stopped together.
//!
//! * [`members`]: the processes of one image. [`membership`]: whether a process is of the job. [`orphans`]: children
//!   above it. [`births`]: who descends from it, known from birth. [`library_page`], [`lineage`]: whose one is by
//!   its memory.
//! * [`stopped_group`]: stops all of them. [`adopt`]: those without libholdfast. [`finish_registration`]: those in
//!   the middle of it.
//! * [`process_age`]: who has had time to register. [`names`]: System V keys that no other job may take.

pub(crate) mod adopt;
pub(crate) mod births;
pub(crate) mod finish_registration;
pub(crate) mod library_page;
pub(crate) mod lineage;
pub(crate) mod members;
pub(crate) mod membership;
pub(crate) mod names;
pub(crate) mod orphans;
pub(crate) mod prepare;
pub(crate) mod process_age;
pub(crate) mod relatives;
pub(crate) mod stopped_group;
pub(crate) mod stopped_process;
pub(crate) mod target;
pub(crate) mod tracer_state;
