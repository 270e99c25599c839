//! `run --cpu-baseline`: what libraries are told by the environment, so that they choose no code beyond a level.
//!
//! Called by [`super::environment`]. What must hold: what the user has set stays; those that ask the processor themselves cannot be
//! told here (docs/guide: README, "On other processors"). How it fails: an entry that the kernel would not take.

use super::launch::c_string;
use crate::exit::Failure;
use holdfast_image::processor::CpuLevel;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;

const TUNABLES: &str = "GLIBC_TUNABLES";
const HWCAPS: &str = "glibc.cpu.hwcaps=";
/// What each level does not have yet of what the C library chooses by, in its own names (sysdeps/x86/cpu-tunables.c); RTM and XSAVEC
/// are in none.
const BEYOND: [(CpuLevel, &str); 3] = [
    (CpuLevel::V4, "-RTM,-HLE,-XSAVEC"),
    (CpuLevel::V3, "-AVX512F,-AVX512BW,-AVX512CD,-AVX512DQ,-AVX512VL,-AVX512ER,-AVX512PF"),
    (CpuLevel::V2, "-AVX,-AVX2,-BMI1,-BMI2,-FMA,-FMA4,-F16C,-LZCNT,-MOVBE"),
];
/// Variables of numeric libraries, with their words for V2, V3 and V4: OpenBLAS (README, "Setting the processor at run time"), NumPy
/// (reference, "CPU dispatcher"), MKL (developer guide, "Instruction Set Specific Dispatching"), oneDNN (developer guide, "CPU Dispatcher
/// Control"), PyTorch (aten/src/ATen/native/DispatchStub.cpp).
const LIBRARIES: [(&str, [&str; 3]); 5] = [
    ("OPENBLAS_CORETYPE", ["Nehalem", "Haswell", "SkylakeX"]),
    (
        "NPY_DISABLE_CPU_FEATURES",
        [
            "AVX F16C FMA3 AVX2 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
            "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
            "AVX512_CLX AVX512_CNL AVX512_ICL",
        ],
    ),
    ("MKL_ENABLE_INSTRUCTIONS", ["SSE4_2", "AVX2", "AVX512"]),
    ("ONEDNN_MAX_CPU_ISA", ["SSE41", "AVX2", "AVX512_CORE"]),
    ("ATEN_CPU_CAPABILITY", ["default", "avx2", "avx512"]),
];

/// Adds to an environment what tells libraries to keep to a level.
///
/// # Errors
/// An entry cannot be written.
pub fn tell(entries: &mut Vec<CString>, level: CpuLevel) -> Result<(), Failure> {
    let beyond = BEYOND.iter().filter(|(own, _)| *own >= level).map(|(_, names)| *names);
    let beyond: Vec<&str> = beyond.collect();
    let old = take(entries, TUNABLES);
    entries.push(entry(TUNABLES, &tunables(old.as_deref(), &beyond.join(",")))?);
    for (name, words) in LIBRARIES {
        let word = CpuLevel::ALL.iter().zip(words).find(|(own, _)| **own == level).map(|(_, word)| word);
        if let (Some(word), None) = (word, place(entries, name)) {
            entries.push(entry(name, word.as_bytes())?);
        }
    }
    Ok(())
}

fn place(entries: &[CString], name: &str) -> Option<usize> {
    let is_it = |entry: &CString| {
        entry.as_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
    };
    entries.iter().position(is_it)
}

/// Takes the value of a variable out.
fn take(entries: &mut Vec<CString>, name: &str) -> Option<Vec<u8>> {
    let entry = entries.remove(place(entries, name)?);
    Some(entry.as_bytes()[name.len() + 1..].to_vec())
}

fn entry(name: &str, value: &[u8]) -> Result<CString, Failure> {
    c_string(OsStr::from_bytes(&[name.as_bytes(), b"=", value].concat()))
}

/// Those that the user has set, with ours after what the same one says already.
fn tunables(old: Option<&[u8]>, beyond: &str) -> Vec<u8> {
    let mut all: Vec<Vec<u8>> = old.unwrap_or_default().split(|&c| c == b':').map(<[u8]>::to_vec).collect();
    all.retain(|tunable| !tunable.is_empty());
    match all.iter_mut().find(|tunable| tunable.starts_with(HWCAPS.as_bytes())) {
        Some(tunable) => tunable.extend([b",", beyond.as_bytes()].concat()),
        None => all.push([HWCAPS.as_bytes(), beyond.as_bytes()].concat()),
    }
    all.join(&b':')
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn told(before: &[&str], level: CpuLevel) -> Vec<String> {
        let mut entries: Vec<CString> = before.iter().map(|text| CString::new(*text).unwrap()).collect();
        tell(&mut entries, level).unwrap();
        entries.into_iter().map(|entry| entry.into_string().unwrap()).collect()
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let before =
            ["A=1", "GLIBC_TUNABLES=glibc.malloc.check=3:glibc.cpu.hwcaps=-ERMS", "OPENBLAS_CORETYPE=Zen"];
        let after = told(&before, CpuLevel::V4);
        assert!(
            after.contains(&"A=1".into()) && after.contains(&"OPENBLAS_CORETYPE=Zen".into()),
            "{after:?}"
        );
        let tunables = "GLIBC_TUNABLES=glibc.malloc.check=3:glibc.cpu.hwcaps=-ERMS,-RTM,-HLE,-XSAVEC";
        assert!(after.contains(&tunables.into()), "{after:?}");
        assert_eq!(after.len(), 7);
    }

    #[test]
    fn a_lower_level_leaves_out_more() {
        let of = |level| told(&[], level).into_iter().find(|entry| entry.starts_with(TUNABLES)).unwrap();
        let [low, middle, high] = CpuLevel::ALL.map(of);
        assert!(low.contains("-AVX2,") && low.contains("-AVX512F,") && low.contains("-XSAVEC"), "{low}");
        assert!(!middle.contains("-AVX2") && middle.contains("-AVX512VL"), "{middle}");
        assert!(!high.contains("AVX512"), "{high}");
    }
}
