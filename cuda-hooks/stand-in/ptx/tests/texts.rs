//! Texts that are wrong, cut off or hostile: an error with its line, never a panic, and no run without an end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::Arc;

use holdfast_ptx::{FaultKind, Grid, Launch, Module, ParseError, Program, Progress, TestMemory};
use proptest::prelude::*;

const REAL: [&str; 4] = [
    include_str!("kernels/basic.ptx"),
    include_str!("kernels/block.ptx"),
    include_str!("kernels/math.ptx"),
    include_str!("kernels/debug.ptx"),
];
const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";
const OUT: u64 = 0x7f00_0000_0000;

fn kernel(body: &str) -> String {
    format!(
        "{HEAD}.visible .entry k(.param .u64 out)\n{{\n.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; \
         .reg .b64 %d<20>; .reg .f32 %f<9>;\nld.param.u64 %d0, [out];\n{body}\n}}\n"
    )
}

/// Runs `k` on 4 KiB of memory at `OUT`, which is its parameter.
fn run(text: &str, threads: u32, seed: u64) -> Result<TestMemory, FaultKind> {
    let module = Arc::new(Module::parse(text).unwrap_or_else(|error| panic!("{error}")));
    let addresses =
        (0..module.variables.len() as u64).map(|n| 0x7000_0000_0000 + (n << 20)).collect::<Vec<_>>();
    let program = Program::new(Arc::clone(&module), addresses.clone()).unwrap();
    let memory = TestMemory::default();
    memory.add(OUT, vec![0; 4096]);
    for (n, address) in addresses.iter().enumerate() {
        memory.add(*address, program.initial(n).unwrap());
    }
    let launch = Launch {
        grid: [1; 3],
        block: [threads, 1, 1],
        shared_bytes: 64,
        parameters: OUT.to_le_bytes().to_vec(),
        seed,
        resident: 1,
    };
    let mut grid = Grid::new(program, "k", launch).unwrap();
    match grid.run(&memory, 1_000_000) {
        Ok(Progress::Done) => Ok(memory),
        Ok(Progress::Running) => panic!("does not end"),
        Err(fault) => Err(fault.kind),
    }
}

/// The first words that a body leaves in memory.
fn words(body: &str, threads: u32, count: usize) -> Vec<u32> {
    let memory = run(&kernel(body), threads, 0).unwrap_or_else(|kind| panic!("{kind}"));
    memory.read(OUT, 4 * count).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

fn error(text: &str) -> ParseError {
    Module::parse(text).expect_err("an error")
}

#[test]
fn errors_name_line_and_text() {
    let found = error(&kernel("add.u32 %r1, %r2, 5;\nwgmma.fence.sync.aligned;"));
    assert_eq!((found.line, found.text.as_str()), (9, "wgmma.fence.sync.aligned;"));
    assert!(found.to_string().contains("wgmma"), "{found}");
    for (body, what) in [
        ("add.u32 %r1, %r2;", "operands"),
        ("add.u32 %r1, %r2, %r40;", "no register"),
        ("add.u32.fast %r1, %r2, %r3;", ".fast"),
        ("add.u64 %r1, %r2, %r3;", "64 bits"),
        ("bra nowhere;", "no label"),
        ("shfl.down.b32 %r1, %r2, 1, 31;", ".sync"),
        ("ld.shared.u32 %r1, [out];", ".param"),
        ("cvt.s32.f32 %r1, %f1;", ".rni"),
        ("add.f32 %f1, %f2, 1;", "integer"),
        ("@%r1 bra out;", "predicate"),
        ("call missing;", "no function"),
        ("mov.u32 %r1, 99999999999999999999;", "64 bits"),
    ] {
        let found = error(&kernel(body));
        assert!(found.what.contains(what) && found.line == 8, "{body}: {found}");
    }
}

#[test]
fn texts_that_are_no_modules() {
    for text in
        ["", "\u{7f}ELF", "// only a comment", ".version 99.0", ".version 8.0 .address_size 32", "\"", "/*"]
    {
        error(text);
    }
}

#[test]
fn real_texts_cut_off_anywhere_are_errors() {
    for text in REAL {
        Module::parse(text).unwrap_or_else(|error| panic!("{error}"));
        let last = text.rfind('}').unwrap();
        for cut in (0..last).step_by(last / 60).filter(|&n| text.is_char_boundary(n)) {
            let _ = Module::parse(&text[..cut]);
        }
    }
}

#[test]
fn declarations_of_any_size_cost_nothing() {
    for body in [
        ".local .b8 big[99999999999];",
        ".shared .b64 big[18446744073709551615];",
        ".reg .b32 %x<18446744073709551615>; mov.u32 %x18446744073709551614, 1;",
    ] {
        let _ = Module::parse(&kernel(body));
    }
    assert!(Module::parse(&format!("{HEAD}.global .align 8 .b8 big[4294967296];")).is_ok());
    let deep = format!("{HEAD}.global .b8 x[1] = {}1{};", "{".repeat(9000), "}".repeat(9000));
    error(&deep);
    error(&kernel(&"{".repeat(9000)));
}

#[test]
fn blocks_have_names_of_their_own() {
    let body = "{ .reg .b32 t; mov.u32 t, 1; bra L; L: st.global.u32 [%d0], t; }
        { .reg .b32 t; mov.u32 t, 2; bra L; mov.u32 t, 3; L: st.global.u32 [%d0+4], t; }";
    assert_eq!(words(body, 1, 2), [1, 2]);
}

#[test]
fn carries_go_through_additions_and_subtractions() {
    let body = "mov.u32 %r1, 0xffffffff; mov.u32 %r2, 5;
        add.cc.u32 %r3, %r1, 1; addc.cc.u32 %r4, %r2, 0xfffffffa; addc.u32 %r5, 0, 0;
        sub.cc.u32 %r6, %r2, 6; subc.u32 %r7, %r2, 0;
        mad.lo.cc.u32 %r8, %r1, %r1, %r1; madc.hi.u32 %r9, %r1, %r1, 0;
        st.global.v4.u32 [%d0], {%r3, %r4, %r5, %r6}; st.global.v2.u32 [%d0+16], {%r7, %r8};
        st.global.u32 [%d0+24], %r9;";
    assert_eq!(words(body, 1, 7), [0, 0, 1, u32::MAX, 4, 0, u32::MAX]);
}

#[test]
fn fields_of_bits() {
    let body =
        "bfe.u32 %r1, 0x12345678, 8, 12; bfe.s32 %r2, 0x12345f78, 8, 4; bfi.b32 %r3, 0xab, 0x11111111, 8, 8;
        bfind.u32 %r4, 0x00010000; bfind.s32 %r5, -1; lop3.b32 %r6, 0xf0, 0xcc, 0xaa, 0x96;
        prmt.b32.rc8 %r7, 0x44332211, 0, 2; bfe.u32 %r8, 0xffffffff, 30, 40;
        st.global.v4.u32 [%d0], {%r1, %r2, %r3, %r4}; st.global.v4.u32 [%d0+16], {%r5, %r6, %r7, %r8};";
    let wanted = [0x456, u32::MAX, 0x1111_ab11, 16, u32::MAX, 0xf0 ^ 0xcc ^ 0xaa, 0x3333_3333, 3];
    assert_eq!(words(body, 1, 8), wanted);
}

#[test]
fn conversions_round_clamp_and_extend() {
    let body = "mov.f32 %f1, 0fC0200000; cvt.rni.s32.f32 %r1, %f1; cvt.rmi.s32.f32 %r2, %f1;
        cvt.rzi.u32.f32 %r3, %f1; mov.f32 %f2, 0f7FC00000; cvt.rzi.s32.f32 %r4, %f2;
        cvt.sat.u8.s32 %r5, 300; cvt.s32.s8 %r6, 0x80; cvt.rn.f32.u32 %f3, 0xffffff81; mov.b32 %r7, %f3;
        cvt.rz.f32.u32 %f3, 0xffffff81; mov.b32 %r8, %f3; cvt.rn.f16.f32 %h1, 0f3F801000; cvt.u32.u16 %r9, %h1;
        cvt.rn.bf16x2.f32 %r10, 0f3F800000, 0fC0000000;
        st.global.v4.u32 [%d0], {%r1, %r2, %r3, %r4}; st.global.v4.u32 [%d0+16], {%r5, %r6, %r7, %r8};
        st.global.v2.u32 [%d0+32], {%r9, %r10};";
    let wanted =
        [-2i32 as u32, -3i32 as u32, 0, 0, 255, 0xffff_ff80, 0x4f80_0000, 0x4f7f_ffff, 0x3c00, 0x3f80_c000];
    assert_eq!(words(body, 1, 10), wanted);
}

#[test]
fn generic_addresses_of_all_windows() {
    let body = ".shared .align 8 .b8 s[16]; .local .align 8 .b8 l[16];
        cvta.shared.u64 %d1, s; mov.u64 %d2, l; cvta.local.u64 %d3, %d2;
        st.u32 [%d1+4], 7; st.u32 [%d3+8], 8; ld.shared.u32 %r1, [s+4]; ld.local.u32 %r2, [l+8];
        isspacep.shared %p1, %d1; selp.u32 %r3, 1, 0, %p1; isspacep.global %p2, %d0; selp.u32 %r4, 1, 0, %p2;
        st.global.v4.u32 [%d0], {%r1, %r2, %r3, %r4};";
    assert_eq!(words(body, 1, 4), [7, 8, 1, 1]);
    // tinygrad's way to write an address
    let first = "cvta.to.global.u64 %d1, %d0; .shared .align 8 .b8 s[16]; mov.u64 %d2, s[0]; st.shared.u32 [%d2+4], 9;
        ld.shared.u32 %r1, [s+4]; st.global.u32 [%d1], %r1;";
    assert_eq!(words(first, 1, 1), [9]);
    let found = error(&kernel(".shared .align 8 .b8 s[16]; mov.u64 %d2, s[1];"));
    assert!(found.to_string().contains("other than the first"), "{found}");
    let outside = kernel(".shared .b8 s[16]; cvta.shared.u64 %d1, s; ld.u32 %r1, [%d1+1024];");
    assert!(matches!(run(&outside, 1, 0), Err(FaultKind::IllegalAddress { .. })));
}

#[test]
fn the_mask_of_active_threads() {
    let body =
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 5; mul.wide.u32 %d1, %r1, 4; add.u64 %d2, %d0, %d1;
        @%p1 bra few; bra end; few: activemask.b32 %r2; st.global.u32 [%d2], %r2; end: ret;";
    assert_eq!(words(body, 32, 6), [31, 31, 31, 31, 31, 0]);
}

#[test]
fn shuffles_keep_to_their_segments() {
    let body = "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 8; add.u64 %d2, %d0, %d1;
        shfl.sync.up.b32 %r2|%p1, %r1, 1, 0x1800, -1; selp.u32 %r3, 1, 0, %p1; st.global.v2.u32 [%d2], {%r2, %r3};";
    let got = words(body, 32, 64);
    for lane in 0..32u32 {
        let first = lane % 8 == 0;
        let wanted = [if first { lane } else { lane - 1 }, u32::from(!first)];
        assert_eq!(got[2 * lane as usize..][..2], wanted, "lane {lane}");
    }
}

#[test]
fn faults_of_threads() {
    type Case = (&'static str, fn(&FaultKind) -> bool);
    let cases: [Case; 7] = [
        ("trap;", |kind| *kind == FaultKind::Trap),
        ("mov.u64 %d1, 64; call %d1, ();", |kind| matches!(kind, FaultKind::InvalidPc(_))),
        ("bar.sync 16;", |kind| matches!(kind, FaultKind::Undefined(_))),
        ("bar.warp.sync 0;", |kind| matches!(kind, FaultKind::Undefined(_))),
        ("bar.sync 1, 64;", |kind| matches!(kind, FaultKind::Deadlock(_))),
        ("alloca.u64 %d1, 9999999;", |kind| matches!(kind, FaultKind::StackOverflow(_))),
        ("ld.local.u64 %d1, [4096];", |kind| matches!(kind, FaultKind::IllegalAddress { .. })),
    ];
    for (body, good) in cases {
        let half = "mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 32; @%p1 exit;";
        let found = match body {
            "bar.sync 1, 64;" => run(&kernel(&format!("{half} {body}")), 64, 0),
            _ => run(&kernel(body), 1, 0),
        };
        assert!(matches!(&found, Err(kind) if good(kind)), "{body}: {found:?}");
    }
}

/// nvcc 13.0 makes comparisons of every `switch` that was tried: so here by hand.
#[test]
fn branches_by_a_table() {
    let body = "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; add.u64 %d2, %d0, %d1;
        ts: .branchtargets A, B, A, C; brx.idx %r1, ts;
        A: mov.u32 %r2, 10; bra.uni D; B: mov.u32 %r2, 20; bra.uni D; C: mov.u32 %r2, 30; D:
        st.global.u32 [%d2], %r2;";
    assert_eq!(words(body, 4, 4), [10, 20, 10, 30]);
    assert!(matches!(run(&kernel(body), 5, 0), Err(FaultKind::Undefined(_))));
}

#[test]
fn recursion_has_an_end() {
    let function =
        ".func (.param .b32 r) f (.param .b32 a) { .local .b8 x[64]; .reg .b32 %v<4>; .reg .pred %p;
        ld.param.u32 %v0, [a]; setp.eq.u32 %p, %v0, 0; mov.u32 %v2, 0; @%p bra done;
        { .param .b32 in; .param .b32 out; sub.u32 %v1, %v0, 1; st.param.b32 [in], %v1; call (out), f, (in);
        ld.param.b32 %v2, [out]; } add.u32 %v2, %v2, %v0; done: st.param.b32 [r], %v2; ret; }";
    let call = |n: u32| {
        let body = format!(
            "{{ .param .b32 in; .param .b32 back; st.param.b32 [in], {n}; call.uni (back), f, (in);
            ld.param.b32 %r1, [back]; }} st.global.u32 [%d0], %r1;"
        );
        kernel(&body).replace(HEAD, &format!("{HEAD}{function}\n"))
    };
    let memory = run(&call(100), 1, 0).unwrap();
    assert_eq!(memory.read(OUT, 4), 5050u32.to_le_bytes());
    assert!(matches!(run(&call(u32::MAX), 1, 0), Err(FaultKind::StackOverflow(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_a_module_or_an_error(text in "\\PC{0,200}", tail in "[.@{}()\\[\\]<>;:,%a-z0-9_\"\n -]{0,200}") {
        let _ = Module::parse(&text);
        let _ = Module::parse(&format!("{HEAD}{tail}"));
        let _ = Module::parse(&kernel(&tail));
    }

    #[test]
    fn damaged_texts_neither_parse_nor_run_into_a_panic(
        which in 0usize..4, changes in prop::collection::vec((any::<u32>(), any::<u32>(), 0u8..4), 1..6), seed: u64,
    ) {
        // in lines: swap, repeat, drop one, or put a word of another in
        let mut lines: Vec<String> = REAL[which].lines().map(String::from).collect();
        for (a, b, how) in changes {
            let (a, b) = (a as usize % lines.len(), b as usize % lines.len());
            match how {
                0 => lines.swap(a, b),
                1 => { let line = lines[a].clone(); lines.insert(b, line); }
                2 => { lines.remove(a); }
                _ => {
                    let word = lines[b].split_whitespace().last().unwrap_or("").to_string();
                    let line = &mut lines[a];
                    let at = line.rfind(' ').unwrap_or(0);
                    line.truncate(at);
                    line.push(' ');
                    line.push_str(&word);
                }
            }
        }
        if let Ok(module) = Module::parse(&lines.join("\n")) {
            let module = Arc::new(module);
            let addresses = vec![OUT; module.variables.len()];
            let program = Program::new(Arc::clone(&module), addresses).unwrap();
            for function in module.functions.iter().filter(|f| f.entry) {
                let memory = TestMemory::default();
                memory.add(OUT, vec![1; 4096]);
                let size = function.parameters.last().map_or(0, |p| (p.offset + p.size) as usize);
                let parameters = OUT.to_le_bytes().iter().copied().cycle().take(size).collect();
                let launch = Launch {
                    grid: [2, 1, 1], block: [33, 1, 1], shared_bytes: 16, parameters, seed, resident: 2,
                };
                if let Ok(mut grid) = Grid::new(program.clone(), &function.name, launch) {
                    let _ = grid.run(&memory, 20_000);
                }
            }
        }
    }
}
