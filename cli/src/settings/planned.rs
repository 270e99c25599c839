//! How often: a time, or as it is planned.

use super::amounts::parse_duration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

/// The first image of a job whose interval is planned comes after that, seconds: there is nothing to plan with before.
const FIRST: u64 = 60;

/// `--every`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Every {
    /// As often as the plan says.
    Auto,
    /// This often.
    Time(Duration),
}

impl Every {
    /// The interval to begin with, seconds.
    pub fn seconds(self) -> u64 {
        match self {
            Every::Auto => FIRST,
            Every::Time(time) => time.as_secs(),
        }
    }
}

impl FromStr for Every {
    type Err = String;
    fn from_str(text: &str) -> Result<Every, String> {
        match text {
            "auto" => Ok(Every::Auto),
            text => parse_duration(text).map(Every::Time).map_err(|why| format!("{why}, or auto")),
        }
    }
}

/// What the interval is planned by, besides what is measured.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Planned {
    /// Mean time between failures, by the name of the level that survives them: milliseconds.
    pub mtbf_ms: BTreeMap<String, u64>,
}
