use super::*;

const GETPID: u32 = 39;
const KILL: u32 = 62;
const ERRNO: u32 = 0x0005_0001;

fn op(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    let ([c0, c1], [k0, k1, k2, k3]) = (code.to_le_bytes(), k.to_le_bytes());
    [c0, c1, jt, jf, k0, k1, k2, k3]
}

fn call(number: u32, args: &[u64]) -> Call {
    let mut call = Call { number, ..Call::default() };
    call.args[..args.len()].copy_from_slice(args);
    call
}

/// As most filters begin: another architecture is forbidden; then one call is, if its first argument is 7.
fn usual() -> [Instruction; 9] {
    [
        op(LD_ABS, 0, 0, 4),
        op(0x15, 1, 0, ARCH),
        op(RET_K, 0, 0, 0),
        op(LD_ABS, 0, 0, 0),
        op(0x15, 0, 3, KILL),
        op(LD_ABS, 0, 0, 16),
        op(0x15, 0, 1, 7),
        op(RET_K, 0, 0, ERRNO),
        op(RET_K, 0, 0, RET_ALLOW),
    ]
}

#[test]
fn a_call_is_told_by_its_number_and_its_arguments() {
    let program = usual();
    assert_eq!(verdict(&program, &call(GETPID, &[])), Verdict::Allowed);
    assert_eq!(verdict(&program, &call(KILL, &[8])), Verdict::Allowed);
    assert_eq!(verdict(&program, &call(KILL, &[7])), Verdict::Forbidden(ERRNO));
    let open = Call { first_is_open: true, ..call(KILL, &[8]) };
    assert_eq!(verdict(&program, &open), Verdict::Unknown);
    assert_eq!(verdict(&program, &Call { number: GETPID, ..open }), Verdict::Allowed);
}

#[test]
fn high_halves_of_arguments_and_all_registers_are_there() {
    let program = [
        op(LD_ABS, 0, 0, 28), // the high half of the second argument
        op(ST, 0, 0, 3),
        op(LDX_IMM, 0, 0, 2),
        op(0x0c, 0, 0, 0), // A += X
        op(TAX, 0, 0, 0),
        op(LD_MEM, 0, 0, 3),
        op(0x64, 0, 0, 4), // A <<= 4
        op(0x1c, 0, 0, 0), // A -= X
        op(0x45, 1, 0, 0x8000_0000),
        op(0x25, 1, 0, 40), // A > 40
        op(RET_K, 0, 0, 0),
        op(RET_K, 0, 0, RET_LOG),
    ];
    // 3 * 16 - 5 = 43, 2 * 16 - 4 = 28.
    assert_eq!(verdict(&program, &call(1, &[0, 3 << 32])), Verdict::Allowed);
    assert_eq!(verdict(&program, &call(1, &[0, 2 << 32])), Verdict::Forbidden(0));
}

#[test]
fn what_no_kernel_takes_or_cannot_be_known_is_not_allowed() {
    let allow = op(RET_K, 0, 0, RET_ALLOW);
    let programs: [&[Instruction]; 7] = [
        &[],
        &[op(0x15, 9, 9, 0), allow],   // out of the program
        &[op(LD_ABS, 0, 0, 8), allow], // the instruction pointer
        &[op(LD_ABS, 0, 0, 64), allow],
        &[op(LD_MEM, 0, 0, 16), allow],
        &[op(0x3c, 0, 0, 0), allow], // A /= X, which is 0
        &[op(0xffff, 0, 0, 0), allow],
    ];
    for (number, program) in programs.iter().enumerate() {
        assert_eq!(verdict(program, &call(1, &[])), Verdict::Unknown, "number {number}");
    }
    assert_eq!(verdict(&[op(0x05, 0, 0, 1), op(0xffff, 0, 0, 0), allow], &call(1, &[])), Verdict::Allowed);
    assert_eq!(verdict(&[op(RET_A, 0, 0, 0)], &call(1, &[])), Verdict::Forbidden(0));
}

#[test]
fn a_listener_is_noticed() {
    assert!(!may_ask_a_listener(&usual()));
    assert!(may_ask_a_listener(&[op(RET_K, 0, 0, RET_USER_NOTIF | 1)]));
    assert!(may_ask_a_listener(&[op(RET_A, 0, 0, 0)]));
}
