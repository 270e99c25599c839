//! `run --cpu-baseline`: what libraries are told by the environment, so that they choose no code beyond a level.
//!
//! Called by [`super::environment`]. What must hold: what the user has set stays; those that ask the processor
//! themselves cannot be told here (README, "On other processors"). How it fails: an entry that the kernel would not
//! take.

use crate::entries::{is_of, variable};
use crate::exit::Failure;
use holdfast_image::processor::CpuLevel;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;

const TUNABLES: &str = "GLIBC_TUNABLES";
const HWCAPS: &str = "glibc.cpu.hwcaps=";
/// What each level does not have yet of what the C library chooses by, in its own names (sysdeps/x86/cpu-tunables.c);
/// RTM and XSAVEC are in none.
const BEYOND: [(CpuLevel, &str); 3] = [
    (CpuLevel::V4, "-RTM,-HLE,-XSAVEC"),
    (CpuLevel::V3, "-AVX512F,-AVX512BW,-AVX512CD,-AVX512DQ,-AVX512VL,-AVX512ER,-AVX512PF"),
    (CpuLevel::V2, "-AVX,-AVX2,-BMI1,-BMI2,-FMA,-FMA4,-F16C,-LZCNT,-MOVBE"),
];
/// Variables of numeric libraries, with their words for V2, V3 and V4: OpenBLAS (README, "Setting the processor at
/// run time"), NumPy (reference, "CPU dispatcher"), MKL (developer guide, "Instruction Set Specific Dispatching"),
/// oneDNN (developer guide, "CPU Dispatcher Control"), PyTorch (aten/src/ATen/native/DispatchStub.cpp).
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

const OPENSSL: &str = "OPENSSL_ia32cap";
/// What each level does not have yet of what OpenSSL chooses by (OPENSSL_ia32cap(3)): bits of EDX and ECX of CPUID
/// leaf 1, of EBX and ECX of leaf 7. AES, PCLMULQDQ and RDRAND stay: `rebuild::processor` looks for them whatever the
/// level.
const CIPHERS: [(CpuLevel, &[u64], &[u64]); 3] = [
    // XOP; RDSEED, ADX, AVX512_IFMA, SHA, VAES, VPCLMULQDQ
    (CpuLevel::V4, &[43], &[18, 19, 21, 29, 41, 42]),
    // AVX512 F, DQ, BW, VL
    (CpuLevel::V3, &[], &[16, 17, 30, 31]),
    // FMA, MOVBE, AVX, F16C; BMI1, AVX2, BMI2
    (CpuLevel::V2, &[44, 54, 60, 61], &[3, 5, 8]),
];

/// Adds to an environment what tells libraries to keep to a level.
///
/// # Errors
/// An entry cannot be written.
pub fn tell(entries: &mut Vec<CString>, level: CpuLevel) -> Result<(), Failure> {
    let beyond: Vec<&str> = BEYOND.iter().filter(|(own, _)| *own >= level).map(|(_, names)| *names).collect();
    let old = take(entries, TUNABLES);
    let tunables = tunables(old.as_deref(), &beyond.join(","));
    entries.push(variable(TUNABLES, OsStr::from_bytes(&tunables))?);
    let word = |words: [&str; 3]| {
        let own = CpuLevel::ALL.iter().zip(words).find(|(own, _)| **own == level);
        own.map_or_else(String::new, |(_, word)| word.to_owned())
    };
    let libraries = LIBRARIES.iter().map(|(name, words)| (*name, word(*words)));
    for (name, word) in libraries.chain([(OPENSSL, ciphers(level))]) {
        if place(entries, name).is_none() {
            entries.push(variable(name, OsStr::new(&word))?);
        }
    }
    Ok(())
}

fn ciphers(level: CpuLevel) -> String {
    let beyond = CIPHERS.iter().filter(|(own, ..)| *own >= level);
    let mask = |bits: &[u64]| bits.iter().fold(0_u64, |mask, bit| mask | 1 << bit);
    let (first, seventh) =
        beyond.fold((0, 0), |(a, b), (_, first, seventh)| (a | mask(first), b | mask(seventh)));
    format!("~{first:#x}:~{seventh:#x}")
}

fn place(entries: &[CString], name: &str) -> Option<usize> {
    entries.iter().position(|entry| is_of(entry, name))
}

/// Takes the value of a variable out.
fn take(entries: &mut Vec<CString>, name: &str) -> Option<Vec<u8>> {
    let entry = entries.remove(place(entries, name)?);
    Some(entry.as_bytes()[name.len() + 1..].to_vec())
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
        assert_eq!(after.len(), 8);
    }

    #[test]
    fn a_lower_level_leaves_out_more() {
        let of = |level| told(&[], level).into_iter().find(|entry| entry.starts_with(TUNABLES)).unwrap();
        let [low, middle, high] = CpuLevel::ALL.map(of);
        assert!(low.contains("-AVX2,") && low.contains("-AVX512F,") && low.contains("-XSAVEC"), "{low}");
        assert!(!middle.contains("-AVX2") && middle.contains("-AVX512VL"), "{middle}");
        assert!(!high.contains("AVX512"), "{high}");
        assert_eq!(ciphers(CpuLevel::V2), "~0x3040180000000000:~0x600e02f0128");
        assert_eq!(ciphers(CpuLevel::V4), "~0x80000000000:~0x600202c0000");
    }
}
