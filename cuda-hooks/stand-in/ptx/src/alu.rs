//! What arithmetic instructions compute, as plain functions chosen by name and type. Called by `decode`; the functions
//! are called by `exec`. They get raw registers, and may leave anything above the bits of their result.

use crate::float::*;
use crate::op::Compute;
use crate::types::Type;

/// A function for each integer type: `T` is the type, `W` the one of twice its width.
macro_rules! integers {
    ($ty:expr, |$a:ident, $b:ident, $c:ident| $e:expr) => {
        integers!(@ $ty, $a, $b, $c, $e, (B16 U16: u16, u32), (S16: i16, i32), (B32 U32: u32, u64), (S32: i32, i64),
            (B64 U64: u64, u128), (S64: i64, i128))
    };
    (@ $ty:expr, $a:ident, $b:ident, $c:ident, $e:expr, $(($($name:ident)+: $t:ty, $w:ty)),+) => {
        match $ty {
            $($(Type::$name)|+ => {
                #[allow(dead_code)]
                type T = $t;
                #[allow(dead_code)]
                type W = $w;
                #[allow(unused_variables, clippy::unnecessary_cast)]
                let function: Compute = |$a, $b, $c, _| ($e) as u64;
                Some(function)
            })+
            _ => None,
        }
    };
}

fn shift_left(bits: u32, a: u64, n: u64) -> u64 {
    if n as u32 >= bits { 0 } else { a << (n as u32) }
}

/// Of a value that is extended by its sign, if it has one.
fn shift_right(bits: u32, signed: bool, a: u64, n: u64) -> u64 {
    let n = (n as u32).min(bits);
    match signed {
        true => ((a as i64) >> n.min(63)) as u64,
        false if n >= 64 => 0,
        false => a >> n,
    }
}

/// ISA 9.7.1.19
fn extract(bits: u32, signed: bool, a: u64, position: u64, length: u64) -> u64 {
    let (position, length) = (position as u32 & 255, length as u32 & 255);
    let there = length.min(bits.saturating_sub(position));
    let shifted = if position >= bits { 0 } else { a >> position };
    let mask = if there >= 64 { u64::MAX } else { (1 << there) - 1 };
    let top = (position + length).saturating_sub(1).min(bits - 1);
    let fill = if signed && length != 0 && a >> top & 1 == 1 { !mask } else { 0 };
    (shifted & mask) | fill
}

/// `bfi` (ISA 9.7.1.20): `a` into `b`.
pub(crate) fn insert(bits: u32, a: u64, b: u64, position: u64, length: u64) -> u64 {
    let (position, length) = (position as u32 & 255, length as u32 & 255);
    let there = length.min(bits.saturating_sub(position));
    if there == 0 {
        return b;
    }
    let mask = (u64::MAX >> (64 - there)) << position;
    (b & !mask) | (a << position & mask)
}

/// Instructions of integers by their name with the modifiers that choose the result.
pub(crate) fn integer(name: &str, ty: Type) -> Option<Compute> {
    match name {
        "add" => integers!(ty, |a, b, c| a.wrapping_add(b)),
        "sub" => integers!(ty, |a, b, c| a.wrapping_sub(b)),
        "add.sat" if ty == Type::S32 => integers!(ty, |a, b, c| (a as T).saturating_add(b as T)),
        "sub.sat" if ty == Type::S32 => integers!(ty, |a, b, c| (a as T).saturating_sub(b as T)),
        "mul.lo" => integers!(ty, |a, b, c| a.wrapping_mul(b)),
        "mul.hi" => integers!(ty, |a, b, c| (a as T as W).wrapping_mul(b as T as W) >> T::BITS),
        "mul.wide" => integers!(ty, |a, b, c| (a as T as W).wrapping_mul(b as T as W)),
        "mad.lo" => integers!(ty, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        "mad.hi" => integers!(ty, |a, b, c| {
            (((a as T as W).wrapping_mul(b as T as W) >> T::BITS) as u64).wrapping_add(c)
        }),
        "mad.wide" => {
            integers!(ty, |a, b, c| ((a as T as W).wrapping_mul(b as T as W) as u64).wrapping_add(c))
        }
        // by zero: the ISA leaves the result open (9.7.1.8, 9.7.1.9)
        "div" => {
            integers!(ty, |a, b, c| if b as T == 0 { u64::MAX } else { (a as T).wrapping_div(b as T) as u64 })
        }
        "rem" => integers!(ty, |a, b, c| if b as T == 0 { a } else { (a as T).wrapping_rem(b as T) as u64 }),
        "min" => integers!(ty, |a, b, c| (a as T).min(b as T)),
        "max" => integers!(ty, |a, b, c| (a as T).max(b as T)),
        "abs" if ty.is_signed() => {
            integers!(ty, |a, b, c| if (a as T as i64) < 0 { a.wrapping_neg() } else { a })
        }
        "neg" => integers!(ty, |a, b, c| a.wrapping_neg()),
        "sad" => integers!(ty, |a, b, c| {
            let (x, y) = (a as T, b as T);
            (if x < y { y.wrapping_sub(x) } else { x.wrapping_sub(y) } as u64).wrapping_add(c)
        }),
        "bfind" => integers!(ty, |a, b, c| {
            let bits = if a as T as i128 >= 0 { a as T } else { !(a as T) };
            if bits == 0 { u64::from(u32::MAX) } else { u64::from(T::BITS - 1 - bits.leading_zeros()) }
        }),
        "bfind.shiftamt" => integers!(ty, |a, b, c| {
            let bits = if a as T as i128 >= 0 { a as T } else { !(a as T) };
            if bits == 0 { u64::from(u32::MAX) } else { u64::from(bits.leading_zeros()) }
        }),
        "bfe" => integers!(ty, |a, b, c| extract(T::BITS, T::MIN != 0, a as T as u64, b, c)),
        "shr" => integers!(ty, |a, b, c| shift_right(T::BITS, T::MIN != 0, a as T as u64, b)),
        "shl" => integers!(ty, |a, b, c| shift_left(T::BITS, a as T as u64, b)),
        "popc" => integers!(ty, |a, b, c| (a as T).count_ones()),
        "clz" => integers!(ty, |a, b, c| (a as T).leading_zeros()),
        "brev" => integers!(ty, |a, b, c| (a as T).reverse_bits()),
        "cnot" => integers!(ty, |a, b, c| u64::from(a as T == 0)),
        "mul24.lo" | "mad24.lo" => integers!(ty, |a, b, c| {
            let low = |x: u64| if T::MIN != 0 { crate::types::sign_extend(x, 24) } else { x & 0xff_ffff };
            low(a).wrapping_mul(low(b)).wrapping_add(c)
        }),
        "mul24.hi" | "mad24.hi" => integers!(ty, |a, b, c| {
            let low = |x: u64| if T::MIN != 0 { crate::types::sign_extend(x, 24) } else { x & 0xff_ffff };
            (low(a).wrapping_mul(low(b)) >> 16).wrapping_add(c)
        }),
        _ => bits(name),
    }
}

/// Those for which only the width counts, and that is in the register.
fn bits(name: &str) -> Option<Compute> {
    let function: Compute = match name {
        "and" => |a, b, _, _| a & b,
        "or" => |a, b, _, _| a | b,
        "xor" => |a, b, _, _| a ^ b,
        "not" => |a, _, _, _| !a,
        "not.pred" => |a, _, _, _| a ^ 1,
        "mov" => |a, _, _, _| a,
        "selp" => |a, b, c, negated| if c & 1 != u64::from(negated) { a } else { b },
        "slct.s32" => |a, b, c, _| if c as i32 >= 0 { a } else { b },
        "slct.f32" => |a, b, c, how| if in32(c, how) >= 0.0 { a } else { b },
        "lop3" => |a, b, c, table| {
            let term = |n: u32, word: u64| if table >> n & 1 == 1 { word } else { 0 };
            let (na, nb, nc) = (!a, !b, !c);
            term(0, na & nb & nc)
                | term(1, na & nb & c)
                | term(2, na & b & nc)
                | term(3, na & b & c)
                | term(4, a & nb & nc)
                | term(5, a & nb & c)
                | term(6, a & b & nc)
                | term(7, a & b & c)
        },
        "shf.l.wrap" => |a, b, c, _| ((b << 32 | a) << (c & 31)) >> 32,
        "shf.l.clamp" => |a, b, c, _| ((b << 32 | a) << (c & 0xffff_ffff).min(32)) >> 32,
        "shf.r.wrap" => |a, b, c, _| (b << 32 | a) >> (c & 31),
        "shf.r.clamp" => |a, b, c, _| (b << 32 | a) >> (c & 0xffff_ffff).min(32),
        "prmt" => |a, b, c, mode| permute(a, b, c, mode),
        "dp4a" => |a, b, c, how| {
            let part = |word: u64, n: u32, signed: bool| {
                let byte = (word >> (8 * n)) as u8;
                if signed { i64::from(byte as i8) } else { i64::from(byte) }
            };
            (0..4).fold(c, |sum, n| {
                sum.wrapping_add((part(a, n, how & 1 != 0) * part(b, n, how & 2 != 0)) as u64)
            })
        },
        _ => return None,
    };
    Some(function)
}

/// The modes of `prmt` (ISA 9.7.9.7); the first is the general one.
pub(crate) const PERMUTE: [&str; 7] = ["", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];

fn permute(a: u64, b: u64, c: u64, mode: u32) -> u64 {
    let bytes = (b & 0xffff_ffff) << 32 | a & 0xffff_ffff;
    let n = c & 3;
    let chosen = |i: u64| match mode {
        0 => c >> (4 * i) & 15,
        1 => n + i,
        2 => (n.wrapping_sub(i)) & 7,
        3 => n,
        4 => n.max(i),
        5 => n.min(i),
        _ => (n & 1) * 2 + (i & 1),
    };
    (0..4).fold(0, |word, i| {
        let byte = bytes >> (8 * (chosen(i) & 7)) & 0xff;
        let byte = if chosen(i) & 8 == 0 { byte } else { 0xff * (byte >> 7) };
        word | byte << (8 * i)
    })
}

/// The smaller or the larger; one NaN yields the other operand, minus zero is below zero (ISA 9.7.3.11, 9.7.3.12).
fn extreme(a: f64, b: f64, larger: bool, how: u32) -> f64 {
    if a.is_nan() || b.is_nan() {
        return if how & NAN != 0 || (a.is_nan() && b.is_nan()) {
            f64::NAN
        } else if a.is_nan() {
            b
        } else {
            a
        };
    }
    let first = a < b || (a == b && a.is_sign_negative());
    if first == larger { b } else { a }
}

type OneHalf = fn(f64, f64, f64, u32) -> f64;

fn one_half(name: &str) -> Option<OneHalf> {
    Some(match name {
        "add" => |a, b, _, _| half_fma(a, 1.0, b),
        "sub" => |a, b, _, _| half_fma(b, -1.0, a),
        "mul" => |a, b, _, _| a * b,
        "fma" => |a, b, c, _| half_fma(a, b, c),
        "min" => |a, b, _, how| extreme(a, b, false, how),
        "max" => |a, b, _, how| extreme(a, b, true, how),
        "neg" => |a, _, _, _| -a,
        "abs" => |a, _, _, _| a.abs(),
        "ex2" => |a, _, _, _| a.exp2(),
        "tanh" => |a, _, _, _| a.tanh(),
        _ => return None,
    })
}

/// The number of a function of halves, which `how` carries.
const HALVES: [&str; 10] = ["add", "sub", "mul", "fma", "min", "max", "neg", "abs", "ex2", "tanh"];
const HALF: u32 = 8;

fn halves(a: u64, b: u64, c: u64, how: u32, bfloat: bool) -> u64 {
    let function = HALVES.get((how >> HALF) as usize & 15).and_then(|name| one_half(name));
    let value =
        function.map_or(f64::NAN, |f| f(half_in(a, bfloat), half_in(b, bfloat), half_in(c, bfloat), how));
    half_out(value, bfloat, how & (SAT | RELU))
}

/// Arithmetic of f16, bf16 and their pairs, to nearest: the function and what is added to its `how`.
pub(crate) fn half(name: &str, ty: Type) -> Option<(Compute, u32)> {
    let number = HALVES.iter().position(|&n| n == name)? as u32;
    let function: Compute = match ty {
        Type::F16 => |a, b, c, how| halves(a, b, c, how, false),
        Type::Bf16 => |a, b, c, how| halves(a, b, c, how, true),
        Type::F16x2 => {
            |a, b, c, how| halves(a >> 16, b >> 16, c >> 16, how, false) << 16 | halves(a, b, c, how, false)
        }
        Type::Bf16x2 => {
            |a, b, c, how| halves(a >> 16, b >> 16, c >> 16, how, true) << 16 | halves(a, b, c, how, true)
        }
        _ => return None,
    };
    Some((function, number << HALF))
}

/// `f` of one f32, computed in f64: the error is far below what the ISA allows its approximations.
fn approximate(a: u64, how: u32, f: fn(f64) -> f64) -> u64 {
    out32(f(f64::from(in32(a, how))) as f32, how)
}

/// Arithmetic of f32 (ISA 9.7.3); `how` has rounding and flags.
pub(crate) fn single(name: &str) -> Option<Compute> {
    let function: Compute = match name {
        "add" => |a, b, _, how| out32(add32(in32(a, how), in32(b, how), Rounding::of(how)), how),
        "sub" => |a, b, _, how| out32(add32(in32(a, how), -in32(b, how), Rounding::of(how)), how),
        "mul" => |a, b, _, how| out32(mul32(in32(a, how), in32(b, how), Rounding::of(how)), how),
        "fma" | "mad" => {
            |a, b, c, how| out32(fma32(in32(a, how), in32(b, how), in32(c, how), Rounding::of(how)), how)
        }
        "div" => |a, b, _, how| out32(div32(in32(a, how), in32(b, how), Rounding::of(how)), how),
        "sqrt" => |a, _, _, how| out32(sqrt32(in32(a, how), Rounding::of(how)), how),
        "rcp" => |a, _, _, how| out32(div32(1.0, in32(a, how), Rounding::of(how)), how),
        "min" => {
            |a, b, _, how| out32(extreme(in32(a, how).into(), in32(b, how).into(), false, how) as f32, how)
        }
        "max" => {
            |a, b, _, how| out32(extreme(in32(a, how).into(), in32(b, how).into(), true, how) as f32, how)
        }
        "neg" => |a, _, _, how| u64::from((-in32(a, how)).to_bits()),
        "abs" => |a, _, _, how| u64::from(in32(a, how).abs().to_bits()),
        "copysign" => |a, b, _, _| (b & 0x7fff_ffff) | (a & 0x8000_0000),
        "rsqrt" => |a, _, _, how| approximate(a, how, |x| 1.0 / x.sqrt()),
        "sin" => |a, _, _, how| approximate(a, how, f64::sin),
        "cos" => |a, _, _, how| approximate(a, how, f64::cos),
        "lg2" => |a, _, _, how| approximate(a, how, f64::log2),
        "ex2" => |a, _, _, how| approximate(a, how, f64::exp2),
        "tanh" => |a, _, _, how| approximate(a, how, f64::tanh),
        _ => return None,
    };
    Some(function)
}

/// Arithmetic of f64.
pub(crate) fn double(name: &str, rounding: Rounding) -> Option<Compute> {
    let function: Compute = match name {
        "add" => |a, b, _, how| out64(add64(in64(a), in64(b), Rounding::of(how))),
        "sub" => |a, b, _, how| out64(add64(in64(a), -in64(b), Rounding::of(how))),
        "mul" => |a, b, _, how| out64(mul64(in64(a), in64(b), Rounding::of(how))),
        "fma" | "mad" if rounding == Rounding::Nearest => {
            |a, b, c, _| out64(in64(a).mul_add(in64(b), in64(c)))
        }
        "div" => |a, b, _, how| out64(div64(in64(a), in64(b), Rounding::of(how))),
        "sqrt" => |a, _, _, how| out64(sqrt64(in64(a), Rounding::of(how))),
        "rcp" => |a, _, _, how| out64(div64(1.0, in64(a), Rounding::of(how))),
        // only the upper half of the result has a meaning, and the others' error is allowed (ISA 9.7.3.14, 9.7.3.17)
        "rcp.approx" => |a, _, _, _| out64(1.0 / in64(a)) & !0xffff_ffff,
        "rsqrt" => |a, _, _, _| out64(1.0 / in64(a).sqrt()),
        "min" => |a, b, _, how| out64(extreme(in64(a), in64(b), false, how)),
        "max" => |a, b, _, how| out64(extreme(in64(a), in64(b), true, how)),
        "neg" => |a, _, _, _| a ^ 1 << 63,
        "abs" => |a, _, _, _| a & !(1 << 63),
        "copysign" => |a, b, _, _| (b & !(1 << 63)) | (a & 1 << 63),
        _ => return None,
    };
    Some(function)
}

/// Comparisons (ISA 9.3): 0 or 1.
pub(crate) fn compare(name: &str, ty: Type) -> Option<Compute> {
    macro_rules! floats {
        ($e:expr) => {{
            const TEST: fn(f64, f64) -> bool = $e;
            let function: Compute = match ty {
                Type::F32 => |a, b, _, how| TEST(in32(a, how).into(), in32(b, how).into()).into(),
                Type::F64 => |a, b, _, _| TEST(in64(a), in64(b)).into(),
                Type::F16 => |a, b, _, _| TEST(half_in(a, false), half_in(b, false)).into(),
                Type::Bf16 => |a, b, _, _| TEST(half_in(a, true), half_in(b, true)).into(),
                _ => return None,
            };
            Some(function)
        }};
    }
    if ty.is_float() {
        return match name {
            "eq" => floats!(|a, b| a == b),
            "ne" => floats!(|a, b| a != b && !a.is_nan() && !b.is_nan()),
            "lt" => floats!(|a, b| a < b),
            "le" => floats!(|a, b| a <= b),
            "gt" => floats!(|a, b| a > b),
            "ge" => floats!(|a, b| a >= b),
            "equ" => floats!(|a, b| a == b || a.is_nan() || b.is_nan()),
            "neu" => floats!(|a, b| a != b),
            "ltu" => floats!(|a, b| a.is_nan() || b.is_nan() || a < b),
            "leu" => floats!(|a, b| a.is_nan() || b.is_nan() || a <= b),
            "gtu" => floats!(|a, b| a.is_nan() || b.is_nan() || a > b),
            "geu" => floats!(|a, b| a.is_nan() || b.is_nan() || a >= b),
            "num" => floats!(|a, b| !a.is_nan() && !b.is_nan()),
            "nan" => floats!(|a, b| a.is_nan() || b.is_nan()),
            _ => None,
        };
    }
    match name {
        "eq" => integers!(ty, |a, b, c| a as T == b as T),
        "ne" => integers!(ty, |a, b, c| a as T != b as T),
        "lt" | "lo" => integers!(ty, |a, b, c| (a as T) < (b as T)),
        "le" | "ls" => integers!(ty, |a, b, c| a as T <= b as T),
        "gt" | "hi" => integers!(ty, |a, b, c| a as T > b as T),
        "ge" | "hs" => integers!(ty, |a, b, c| a as T >= b as T),
        _ => None,
    }
}

/// `testp` (ISA 9.7.3.1).
pub(crate) fn test(name: &str, ty: Type) -> Option<Compute> {
    macro_rules! floats {
        ($test:ident) => {
            match ty {
                Type::F32 => Some((|a, _, _, _| u64::from(f32::from_bits(a as u32).$test())) as Compute),
                Type::F64 => Some((|a, _, _, _| u64::from(f64::from_bits(a).$test())) as Compute),
                _ => None,
            }
        };
    }
    match name {
        "finite" => floats!(is_finite),
        "infinite" => floats!(is_infinite),
        "notanumber" => floats!(is_nan),
        "normal" => floats!(is_normal),
        "subnormal" => floats!(is_subnormal),
        _ => None,
    }
}

/// What `atom` and `red` make of the old value (ISA 9.7.13.5); their operands are `b` and `c`.
pub(crate) fn atomic(name: &str, ty: Type) -> Option<Compute> {
    match (name, ty) {
        ("exch", _) => Some(|_, b, _, _| b),
        ("cas", _) => Some(|a, b, c, _| if a == b { c } else { a }),
        ("inc", Type::U32) => Some(|a, b, _, _| if a >= b { 0 } else { a + 1 }),
        ("dec", Type::U32) => Some(|a, b, _, _| if a == 0 || a > b { b } else { a - 1 }),
        ("add", Type::F32) => single("add"),
        ("add", Type::F64) => double("add", Rounding::Nearest),
        ("add" | "min" | "max", Type::F16) => match name {
            "add" => Some(|a, b, c, _| halves(a, b, c, 0, false)),
            "min" => Some(|a, b, c, _| halves(a, b, c, 4 << HALF, false)),
            _ => Some(|a, b, c, _| halves(a, b, c, 5 << HALF, false)),
        },
        ("add", Type::F16x2) => {
            Some(|a, b, c, _| halves(a >> 16, b >> 16, c >> 16, 0, false) << 16 | halves(a, b, c, 0, false))
        }
        ("add" | "min" | "max" | "and" | "or" | "xor", _) if !ty.is_float() && ty.bits() >= 32 => {
            integer(name, ty)
        }
        _ => None,
    }
}
