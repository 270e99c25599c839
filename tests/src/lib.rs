//! Harness of the end-to-end tests: real programs under the real `holdfast`, killed and restarted.
//!
//! * [`artifacts`]: the binary, the library and the test programs, in a folder that every user may read.
//! * [`sandbox`]: a folder of one test, the user that it runs as, and the certainty that nothing is left behind.
//! * [`apps`]: the programs that the tests run, and what they print when nobody disturbs them.
//! * [`restart_chain`]: start, checkpoint, kill -9, restart, again and again; the joined output must equal the
//!   undisturbed one.
//! * [`cuda_job`]: a job of one CUDA program on the stand-in driver.
//! * [`hosts`]: several hosts, which are network namespaces, with an ssh between them.
//! * [`refused`]: the list of things that a checkpoint refuses by name, and how they are tried.
//! * [`suite`]: the list of self-checking programs, each with the feature that it stands for.
//! * [`object_server`]: a small object store that is down, full, silent or refuses when a test says so.
//! * [`own`]: programs that checkpoint themselves, built and run.
//! * [`own_ids`]: a pid namespace for tests that choose the ids of processes.
//! * [`known_losses`]: what is not as it was after a restart, though nothing is refused.
//! * [`processes`]: what is running, from `/proc`.
//! * [`segments`]: somebody outside all jobs who has shared memory of theirs.
//! * [`random`]: moments and bits, from a seed that a failing test prints.
//!
//! Settings, all by environment: `HOLDFAST_TEST_FULL=1` all rounds, `HOLDFAST_TEST_SEED=N` the moments of an earlier
//! run, `HOLDFAST_TEST_BIN=DIR` where `holdfast` and `libholdfast.so` are, `HOLDFAST_TEST_KEEP=1` keep the folders of
//! the tests.

pub mod apps;
pub mod artifacts;
pub mod cuda_job;
pub mod hosts;
pub mod known_losses;
pub mod object_server;
pub mod own;
pub mod own_ids;
pub mod processes;
pub mod random;
pub mod refused;
pub mod restart_chain;
pub mod sandbox;
pub mod segments;
pub mod suite;

/// Whether the long form of the tests was asked for (`make test-full`).
pub fn full() -> bool {
    std::env::var_os("HOLDFAST_TEST_FULL").is_some_and(|value| value != "0")
}
