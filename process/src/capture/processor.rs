//! What the processor can do: recorded with an image, compared before a restart.
//!
//! Libraries choose their code by what the processor has when they start (`ifunc`), so a program that is restarted on
//! a lesser one dies of SIGILL, at once or hours later. Names are those of /proc/cpuinfo
//! (arch/x86/include/asm/cpufeatures.h). Only what adds instructions counts: hints about speed (erms, fsrm, rep_good)
//! must not keep a program from a processor that runs it as well.

use crate::stop::xstate;
use holdfast_image::processor::CpuLevel;
use holdfast_sys::fault;
use std::fs;
use std::sync::OnceLock;

/// Features whose instructions a program may execute once it has seen them.
const INSTRUCTIONS: [&str; 76] = [
    "3dnow",
    "3dnowext",
    "3dnowprefetch",
    "abm",
    "adx",
    "aes",
    "amx_bf16",
    "amx_complex",
    "amx_fp16",
    "amx_int8",
    "amx_tile",
    "avx",
    "avx2",
    "avx512_4fmaps",
    "avx512_4vnniw",
    "avx512_bf16",
    "avx512_bitalg",
    "avx512_fp16",
    "avx512_vbmi2",
    "avx512_vnni",
    "avx512_vp2intersect",
    "avx512_vpopcntdq",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512er",
    "avx512f",
    "avx512ifma",
    "avx512pf",
    "avx512vbmi",
    "avx512vl",
    "avx_ifma",
    "avx_ne_convert",
    "avx_vnni",
    "avx_vnni_int8",
    "bmi1",
    "bmi2",
    "cldemote",
    "clflushopt",
    "clwb",
    "clzero",
    "cmpccxadd",
    "cx16",
    "enqcmd",
    "f16c",
    "fma",
    "fma4",
    "fsgsbase",
    "gfni",
    "hle",
    "lwp",
    "monitorx",
    "movbe",
    "movdir64b",
    "movdiri",
    "pclmulqdq",
    "pni",
    "popcnt",
    "prefetchi",
    "rdpid",
    "rdrand",
    "rdseed",
    "rdtscp",
    "rtm",
    "serialize",
    "sha_ni",
    "sse4_1",
    "sse4_2",
    "sse4a",
    "ssse3",
    "tbm",
    "vaes",
    "vpclmulqdq",
    "xop",
    "xsave",
    "xsavec",
];

/// What each level of the psABI adds to the one before.
const LEVELS: [(CpuLevel, &[&str]); 3] = [
    (CpuLevel::V2, &["cx16", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3"]),
    (CpuLevel::V3, &["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"]),
    (CpuLevel::V4, &["avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"]),
];
/// Used whatever a program is told, from V2 on: by XSAVE ld.so keeps registers when it finds a function at its first
/// call (sysdeps/x86_64/dl-trampoline.h); the others have been in all processors since long before V3, and ciphers
/// are slow without them.
const ALWAYS: [&str; 4] = ["aes", "pclmulqdq", "rdrand", "xsave"];

/// A processor.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Processor {
    /// Its name, for messages.
    pub model: String,
    /// Which of [`INSTRUCTIONS`] it has, in their order.
    pub instructions: Vec<String>,
}

/// Whether programs of this level may execute it.
pub fn is_of(level: CpuLevel, instruction: &str) -> bool {
    let has = |(own, names): &(CpuLevel, &[&str])| *own <= level && names.contains(&instruction);
    ALWAYS.contains(&instruction) || LEVELS.iter().any(has)
}

/// That of this host; all processors of a host are taken for alike. Read once: the text has a page for each of them.
pub fn own() -> &'static Processor {
    static OWN: OnceLock<Processor> = OnceLock::new();
    OWN.get_or_init(|| {
        let mut own = parse(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        if fault::is_asked(LESSER) {
            own.instructions.retain(|name| is_of(CpuLevel::V2, name));
        }
        own
    })
}

/// XCR0: the extended registers of this host.
pub fn registers() -> u64 {
    const SSE: u64 = 3;
    if fault::is_asked(LESSER) { xstate::enabled() & SSE } else { xstate::enabled() }
}

/// `HOLDFAST_FAULT=lesser-processor`: to a restart this host has what is in [`CpuLevel::V2`].
const LESSER: &str = "lesser-processor";

fn parse(text: &str) -> Processor {
    let value = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.split_once(':').map(|(_, value)| value.trim()))
    };
    let flags: Vec<&str> = value("flags").unwrap_or_default().split(' ').collect();
    let has = |name: &&&str| flags.contains(*name);
    Processor {
        model: value("model name").unwrap_or_default().to_owned(),
        instructions: INSTRUCTIONS.iter().filter(has).map(|name| (*name).to_owned()).collect(),
    }
}

impl Processor {
    /// What a program that ran with `instructions` may miss here.
    pub fn lacks<'a>(&self, instructions: &'a [String]) -> Vec<&'a str> {
        instructions.iter().filter(|name| !self.instructions.contains(name)).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_count_and_hints_do_not() {
        let text = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse4_1 erms avx2 fsrm avx\n\n\
                    processor\t: 1\n";
        let processor = parse(text);
        assert_eq!(processor.model, "Some CPU");
        assert_eq!(processor.instructions, ["avx", "avx2", "sse4_1"]);
        let wanted = ["avx", "avx512f", "bmi2"].map(str::to_owned);
        assert_eq!(processor.lacks(&wanted), ["avx512f", "bmi2"]);
        assert_eq!(parse(""), Processor::default());
    }

    #[test]
    fn a_level_has_what_those_below_have() {
        let of = |level| INSTRUCTIONS.iter().filter(|name| is_of(level, name)).count();
        assert_eq!([of(CpuLevel::V2), of(CpuLevel::V3), of(CpuLevel::V4)], [10, 18, 23]);
        let known = |names: &&str| INSTRUCTIONS.contains(names);
        assert!(LEVELS.iter().all(|(_, names)| names.iter().all(known)));
        assert!(
            is_of(CpuLevel::V4, "avx2") && !is_of(CpuLevel::V2, "avx2") && !is_of(CpuLevel::V4, "xsavec")
        );
    }

    #[test]
    fn this_processor_is_known() {
        let own = own();
        assert!(own.instructions.iter().any(|name| name == "ssse3"), "{own:?}");
        assert_eq!(own.lacks(&own.instructions), [""; 0]);
    }
}
