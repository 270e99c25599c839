//! All end-to-end tests, in one binary: one link, and no processor idles while the last test of a file comes to its
//! end. Each file says at its head what it shows; `tests/README.md` has the list.
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)]

mod again;
mod chains_apps;
mod chains_cuda;
mod chains_programs;
mod check;
mod compression;
mod copies;
mod crash;
mod crowd;
mod cuda;
mod cuda_data;
mod cuda_faults;
mod cuda_keeper;
mod cuda_programs;
mod cuda_refusals;
mod cuda_restarts;
mod file_owners;
mod garage;
mod hygiene;
mod ids;
mod images;
mod increments;
mod json;
mod launchers;
mod lazy;
mod lifecycle;
mod memory;
mod messages;
mod name_caches;
mod package;
mod plain_job;
mod processors;
mod refusals;
mod saved_files;
mod security;
mod servers;
mod signals;
mod stops;
mod streams;
mod tiers;
mod tiers_faults;
mod tiers_memory;
mod torture;
mod trees_apps;
