//! Why nvCOMP cannot be used, and what to do.

use thiserror::Error;

/// nvCOMP cannot be used.
#[derive(Debug, Error)]
pub enum NvcompError {
    /// It cannot be loaded, or lacks a function.
    #[error("{path}: {reason}; without it, the host's processors compress images")]
    Load {
        /// Which library.
        path: String,
        /// What the loader says, or what is missing.
        reason: String,
    },
    /// Another version.
    #[error("{path}: nvCOMP {version} is not known; install version 5 or 6")]
    Version {
        /// Which library.
        path: String,
        /// As it says.
        version: String,
    },
    /// A call has failed.
    #[error("{function}: {status}; its data stays uncompressed")]
    Call {
        /// Of nvCOMP.
        function: &'static str,
        /// In words.
        status: String,
    },
    /// It says what cannot be.
    #[error("nvCOMP says {what}; its data stays uncompressed")]
    Nonsense {
        /// What.
        what: String,
    },
    /// The caller's chunks cannot be packed together.
    #[error("{what}; its data stays uncompressed")]
    Chunks {
        /// Why.
        what: String,
    },
}
