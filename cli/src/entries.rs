//! Entries of an environment, as the kernel takes them.
//!
//! Used by what starts processes. Fails by: an entry that holds a NUL.

use crate::exit::{Exit, Failure};
use holdfast_abi::environment::ENV_KEY;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

/// Of `holdfast run` and `restart` under `--restart-on-failure`: the process that starts them, which restarts them.
pub const ENV_SUPERVISED: &str = "HOLDFAST_SUPERVISED";

/// The name under which the binary is `holdfast rsh`.
pub const RSH: &str = "holdfast-rsh";

/// A string for the kernel.
///
/// # Errors
/// It holds a NUL.
pub fn c_string(text: &OsStr) -> Result<CString, Failure> {
    CString::new(text.as_bytes())
        .map_err(|_| Failure::new(Exit::Usage, format!("{:?} holds a NUL byte", text.to_string_lossy())))
}

/// An entry of an environment.
///
/// # Errors
/// As [`c_string`].
pub fn variable(name: &str, value: &OsStr) -> Result<CString, Failure> {
    let mut entry = OsString::from(name);
    entry.push("=");
    entry.push(value);
    c_string(&entry)
}

/// The environment as it is, in its task.
///
/// # Errors
/// None in practice: variables cannot hold a NUL.
pub fn own_environment() -> Result<Vec<CString>, Failure> {
    std::env::vars_os()
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            c_string(&name)
        })
        .collect()
}

/// Whether an entry is that of a variable.
pub fn is_of(entry: &CString, name: &str) -> bool {
    entry.as_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
}

/// Ours without LD_PRELOAD: what is meant for the program must not be loaded into the agent, nor into its helpers.
/// And without the key of a job that we are in.
///
/// # Errors
/// As [`own_environment`].
pub fn helper_environment() -> Result<Vec<CString>, Failure> {
    let mut all = own_environment()?;
    all.retain(|entry| !["LD_PRELOAD", ENV_KEY, ENV_SUPERVISED].iter().any(|name| is_of(entry, name)));
    Ok(all)
}

/// The same for what is started by std.
///
/// # Errors
/// As [`own_environment`].
pub fn set_helper_environment(command: &mut Command) -> Result<(), Failure> {
    command.env_clear();
    for entry in helper_environment()? {
        let entry = entry.as_bytes();
        let at = entry.iter().position(|&c| c == b'=').unwrap_or(entry.len());
        let value = entry.get(at + 1..).unwrap_or_default();
        command.env(OsStr::from_bytes(&entry[..at]), OsStr::from_bytes(value));
    }
    Ok(())
}
