//! What a restart does beside bringing the program back: options of `restart` and of `run --resume`.

use crate::settings::parse_any_signal;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// See the head of the file.
#[derive(Clone, Debug, Default, Args)]
pub struct OnRestart {
    /// From this restart on the program finds NAME=VALUE in its environment, as getenv(3) gives it, and so does what it
    /// starts (may be given more than once). What it has made of the old value stays
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable())]
    pub env: Vec<CString>,
    /// Run CMD by a shell before the program goes on, and wait for it. If it fails, there is no restart. HOLDFAST_IMAGE
    /// is the number of the image, HOLDFAST_IMAGE_PATH its path, HOLDFAST_JOB the job
    #[arg(long, value_name = "CMD")]
    pub exec_on_restart: Option<String>,
    /// Send SIG to each process of the program that has a handler for it, as soon as it goes on
    #[arg(long, value_name = "SIG", value_parser = parse_any_signal)]
    pub signal_on_restart: Option<i32>,
}

impl OnRestart {
    /// Whether nothing was given.
    pub fn is_none(&self) -> bool {
        self.env.is_empty() && self.exec_on_restart.is_none() && self.signal_on_restart.is_none()
    }

    /// The variables, for a program that starts afresh.
    pub fn variables<'a>(&'a self) -> Vec<(&'a str, OsString)> {
        let parts = |entry: &'a CString| {
            let (name, value) = entry.to_bytes().split_at(entry.as_bytes().iter().position(|&c| c == b'=')?);
            Some((str::from_utf8(name).ok()?, OsStr::from_bytes(value.get(1..)?).to_owned()))
        };
        self.env.iter().filter_map(parts).collect()
    }
}

/// Reads `NAME=VALUE`; the value need not be text.
pub(super) fn variable() -> impl TypedValueParser<Value = CString> {
    OsStringValueParser::new().try_map(|text: OsString| entry(&text))
}

fn entry(text: &OsStr) -> Result<CString, String> {
    let shown = text.to_string_lossy();
    let name = text.as_bytes().split(|&byte| byte == b'=').next().and_then(|name| str::from_utf8(name).ok());
    let Some(name) = name.filter(|name| !name.is_empty() && name.len() < text.len()) else {
        return Err(format!("{shown:?} is not NAME=VALUE"));
    };
    if name == "LD_PRELOAD" || name.starts_with("HOLDFAST_") {
        return Err(format!("{name} is what Holdfast itself needs in the program's environment"));
    }
    CString::new(text.to_owned().into_vec()).map_err(|_| format!("{shown:?} holds a NUL byte"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_a_name_that_is_not_ours() {
        let read = |text: &str| entry(OsStr::new(text));
        for good in ["A=", "A=1", "A==", "A= b\n", "LD_PRELOADS=1"] {
            assert_eq!(read(good).unwrap().to_str().unwrap(), good);
        }
        for bad in ["", "A", "=", "=1", "A=\0", "LD_PRELOAD=/x.so", "HOLDFAST_SOCKET=/x"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
