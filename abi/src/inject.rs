//! The injection area: two ranges of the program that belong to the agent alone. Where they are, the process says when
//! it registers; what is in them only the agent knows (`process/src/inject/`, `process/src/stop/continuation.rs`).

/// Length of the code range that the library reserves, readable and executable: bytes.
pub const CODE_LEN: usize = 64 * 1024;
/// Length of the scratch range that the library reserves, readable and writable: bytes.
pub const SCRATCH_LEN: usize = 1024 * 1024;
/// Shortest code range that the agent takes: one page of stub code, the rest continuation slots.
pub const MIN_CODE_LEN: usize = 64 * 1024;
/// Shortest scratch range that the agent takes: call tables, a signal frame and buffers.
pub const MIN_SCRATCH_LEN: usize = 256 * 1024;

const _: () = assert!(CODE_LEN >= MIN_CODE_LEN && SCRATCH_LEN >= MIN_SCRATCH_LEN);
