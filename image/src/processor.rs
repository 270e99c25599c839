//! What of a processor an image depends on.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A level of the x86-64 psABI (version 1.0, section 3.1.1): instructions that all its processors have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum CpuLevel {
    /// SSE4.2, from 2009 on.
    #[serde(rename = "x86-64-v2")]
    V2,
    /// AVX2 and FMA, from 2013 on.
    #[serde(rename = "x86-64-v3")]
    V3,
    /// AVX-512 as servers have had it from 2017 on.
    #[serde(rename = "x86-64-v4")]
    V4,
}

impl CpuLevel {
    /// All of them, ascending.
    pub const ALL: [CpuLevel; 3] = [CpuLevel::V2, CpuLevel::V3, CpuLevel::V4];

    /// As compilers call it (`-march`).
    pub fn name(self) -> &'static str {
        match self {
            CpuLevel::V2 => "x86-64-v2",
            CpuLevel::V3 => "x86-64-v3",
            CpuLevel::V4 => "x86-64-v4",
        }
    }
}

impl fmt::Display for CpuLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CpuLevel {
    type Err = String;
    fn from_str(text: &str) -> Result<CpuLevel, String> {
        let level = CpuLevel::ALL.into_iter().find(|level| level.name() == text);
        level.ok_or_else(|| format!("{text:?} is none of {}", CpuLevel::ALL.map(CpuLevel::name).join(", ")))
    }
}

/// Where the processor puts the registers of one feature in the standard format of XSAVE (CPUID leaf 0xD; Intel SDM
/// volume 1, 13.4): not all put them at the same place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct XstatePart {
    /// Number of the feature in XCR0.
    pub feature: u32,
    /// Byte in the area.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_known_by_their_names() {
        for level in CpuLevel::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert_eq!(serde_json::to_string(&level).ok(), Some(format!("\"{level}\"")));
        }
        assert!("x86-64-v5".parse::<CpuLevel>().is_err_and(|why| why.contains("x86-64-v4")));
    }
}
