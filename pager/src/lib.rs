//! Epochs, dirty sets, the bound on copies, access history and flush order: pure algorithms, no system calls.
#![forbid(unsafe_code)]
