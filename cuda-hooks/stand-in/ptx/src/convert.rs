//! `cvt` (ISA 9.7.9.21): between all types that have values. Called by `decode`, which packs what it needs into `how`.

use crate::float::{FTZ, RELU, Rounding, SAT, SINGLE, add64, half_in, half_out, in32, narrow, out32, out64};
use crate::types::{ALL, Type};

/// Round to an integer first (`.rni`, `.rzi`, `.rmi`, `.rpi`).
pub(crate) const INTEGRAL: u32 = 64;
const FROM: u32 = 8;
const TO: u32 = 16;

/// `flags` are rounding, FTZ, SAT, RELU and INTEGRAL.
pub(crate) fn how(to: Type, from: Type, flags: u32) -> Option<u32> {
    let number = |ty: Type| ALL.iter().position(|&t| t == ty).map(|n| n as u32);
    Some(flags | number(from)? << FROM | number(to)? << TO)
}

fn kind(number: u32) -> Type {
    ALL.get(number as usize & 31).copied().unwrap_or(Type::B64)
}

/// The conversion of one value.
pub(crate) fn convert(a: u64, _: u64, _: u64, how: u32) -> u64 {
    let (from, to) = (kind(how >> FROM), kind(how >> TO));
    match (from.is_float(), to.is_float()) {
        (false, false) => integer(a, from, to, how & SAT != 0),
        (false, true) => from_integer(a, from, to, how),
        (true, _) => {
            let mut value = match from {
                Type::F32 => f64::from(in32(a, how)),
                Type::F64 => f64::from_bits(a),
                _ => half_in(a, from == Type::Bf16),
            };
            if how & INTEGRAL != 0 || !to.is_float() {
                value = match Rounding::of(how) {
                    Rounding::Nearest => value.round_ties_even(),
                    Rounding::Zero => value.trunc(),
                    Rounding::Down => value.floor(),
                    Rounding::Up => value.ceil(),
                };
            }
            if to.is_float() { float(value, to, how) } else { to_integer(value, to) }
        }
    }
}

/// Two f32 into a packed pair of halves: `a` into the upper one.
pub(crate) fn pack_halves(a: u64, b: u64, _: u64, how: u32) -> u64 {
    let bfloat = kind(how >> TO) == Type::Bf16x2;
    let half = |bits| half_out(f64::from(in32(bits, how)), bfloat, how);
    half(a) << 16 | half(b)
}

fn integer(a: u64, from: Type, to: Type, saturate: bool) -> u64 {
    let value = from.extend(a);
    if !saturate {
        return to.extend(value);
    }
    let value = if from.is_signed() { i128::from(value as i64) } else { i128::from(value) };
    let bits = to.bits();
    let (least, most) = if to.is_signed() {
        (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
    } else {
        (0, (1i128 << bits) - 1)
    };
    value.clamp(least, most) as u64
}

/// Out of range is clamped, NaN is zero.
fn to_integer(value: f64, to: Type) -> u64 {
    match to {
        Type::S8 => value as i8 as u64,
        Type::S16 => value as i16 as u64,
        Type::S32 => value as i32 as u64,
        Type::S64 => value as i64 as u64,
        Type::U8 | Type::B8 => value as u8 as u64,
        Type::U16 | Type::B16 => value as u16 as u64,
        Type::U32 | Type::B32 => value as u32 as u64,
        _ => value as u64,
    }
}

fn from_integer(a: u64, from: Type, to: Type, how: u32) -> u64 {
    let value = from.extend(a);
    let negative = from.is_signed() && (value as i64) < 0;
    let magnitude = if negative { value.wrapping_neg() } else { value };
    // in two parts that doubles hold exactly
    let sign = if negative { -1.0 } else { 1.0 };
    let (high, low) =
        (sign * ((magnitude >> 32) as f64) * 4_294_967_296.0, sign * ((magnitude & 0xffff_ffff) as f64));
    if to == Type::F64 {
        return out64(saturated(if magnitude == 0 { 0.0 } else { add64(high, low, Rounding::of(how)) }, how));
    }
    // f32 and halves: cut off with the last bit kept odd, then rounded once
    let drop = (64 - magnitude.leading_zeros()).saturating_sub(53);
    let kept = magnitude >> drop << drop;
    let odd = kept | if kept == magnitude { 0 } else { 1 << drop };
    float(if odd == 0 { 0.0 } else { sign * odd as f64 }, to, how)
}

fn saturated(value: f64, how: u32) -> f64 {
    match how & SAT != 0 {
        true if value.is_nan() || value <= 0.0 => 0.0,
        true => value.min(1.0),
        false => value,
    }
}

fn float(value: f64, to: Type, how: u32) -> u64 {
    match to {
        Type::F64 => out64(saturated(value, how)),
        Type::F32 => out32(f32::from_bits(narrow(value, SINGLE, Rounding::of(how))), how & (FTZ | SAT)),
        _ => half_out(value, to == Type::Bf16, how & (3 | SAT | RELU)),
    }
}
