//! Floating-point arithmetic with the rounding that an instruction names (ISA 9.7.3). Called by `alu` and `convert`.
//!
//! f32 in every mode: computed in f64, inexactness kept by rounding to odd, then rounded once. (Boldo and Melquiond,
//! "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008: right as f64 has
//! more than two bits beyond twice the precision of f32.) f64 to nearest is the processor's; in the other modes the
//! result to nearest is moved by one step, where the exact rest says so.

use crate::half::{bf16_to_f32, f16_to_f32};

/// How to round, in the two lowest bits of an instruction's `how`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rounding {
    Nearest = 0,
    Zero = 1,
    Down = 2,
    Up = 3,
}

/// Flush subnormal inputs and results to zero.
pub(crate) const FTZ: u32 = 4;
/// Clamp to [0, 1], NaN to zero.
pub(crate) const SAT: u32 = 8;
/// Results and operands of `min`, `max` are NaN if one is.
pub(crate) const NAN: u32 = 16;
/// Negative results to zero, NaN to NaN.
pub(crate) const RELU: u32 = 32;

/// What NVIDIA's processors give as a NaN of f32 (ISA 9.7.3: "canonical NaN").
pub(crate) const NAN32: u32 = 0x7fff_ffff;

impl Rounding {
    pub(crate) fn of(how: u32) -> Rounding {
        match how & 3 {
            0 => Rounding::Nearest,
            1 => Rounding::Zero,
            2 => Rounding::Down,
            _ => Rounding::Up,
        }
    }

    /// Whether a result that was cut off goes one step away from zero.
    fn away(self, negative: bool) -> bool {
        match self {
            Rounding::Nearest | Rounding::Zero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
        }
    }
}

/// A float format by its widths; the value is rounded from an f64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    exponent: u32,
    fraction: u32,
}

pub(crate) const HALF: Format = Format { exponent: 5, fraction: 10 };
pub(crate) const BFLOAT: Format = Format { exponent: 8, fraction: 7 };
pub(crate) const SINGLE: Format = Format { exponent: 8, fraction: 23 };

/// Rounds an f64 once to a narrower format; NaN becomes the format's canonical NaN.
pub(crate) fn narrow(value: f64, to: Format, rounding: Rounding) -> u32 {
    let width = to.exponent + to.fraction;
    let infinity = ((1u32 << to.exponent) - 1) << to.fraction;
    if value.is_nan() {
        return (1u32 << width) - 1;
    }
    let negative = value.is_sign_negative();
    let sign = u32::from(negative) << width;
    let bits = value.to_bits() & !(1 << 63);
    if bits == 0 {
        return sign;
    }
    if value.is_infinite() {
        return sign | infinity;
    }
    let bias = (1i64 << (to.exponent - 1)) - 1;
    let raw = (bits >> 52) as i64;
    let significand = (bits & ((1 << 52) - 1)) | if raw == 0 { 0 } else { 1 << 52 };
    let exponent = raw.max(1) - 1023 + bias; // biased in the new format, if normal
    // the significand's last bit in the new format is bit `drop` of the old one
    let drop = i64::from(52 - to.fraction) + (1 - exponent).max(0);
    let (kept, rest) =
        if drop > 63 { (0, 1) } else { (significand >> drop, significand & ((1 << drop) - 1)) };
    let half = if drop > 63 { 2 } else { 1u64 << (drop - 1) };
    let up = match rounding {
        Rounding::Nearest => rest > half || (rest == half && kept & 1 == 1),
        _ => rest != 0 && rounding.away(negative),
    };
    // a carry goes from the fraction into the exponent by itself
    let base = if exponent > 1 { (exponent as u64 - 1) << to.fraction } else { 0 };
    let result = base + kept + u64::from(up);
    if result >= u64::from(infinity) {
        let largest = !matches!(rounding, Rounding::Nearest) && !rounding.away(negative);
        return sign | if largest { infinity - 1 } else { infinity };
    }
    sign | result as u32
}

/// `value` plus a rest of the sign of `rest`, rounded to odd: the last bit tells that something was cut off.
fn odd(value: f64, rest: f64) -> f64 {
    if rest == 0.0 || rest.is_nan() || !value.is_finite() || value.to_bits() & 1 == 1 {
        return value;
    }
    let toward_zero = value != 0.0 && (rest > 0.0) != (value > 0.0);
    f64::from_bits(if toward_zero { value.to_bits() - 1 } else { value.to_bits() | 1 })
}

/// Sum and what its rounding cut off (Knuth).
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// The sign of an exact zero that comes of a sum: minus only when rounding down, or of two minus zeros.
fn sum32(a: f64, b: f64, rounding: Rounding) -> u32 {
    let (sum, rest) = two_sum(a, b);
    let zeros = a == 0.0 && b == 0.0 && a.is_sign_positive() && b.is_sign_positive();
    if sum == 0.0 && rounding == Rounding::Down && !zeros {
        return 1 << 31;
    }
    narrow(odd(sum, rest), SINGLE, rounding)
}

pub(crate) fn add32(a: f32, b: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::Nearest { a + b } else { f32::from_bits(sum32(a.into(), b.into(), rounding)) }
}

pub(crate) fn mul32(a: f32, b: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::Nearest {
        return a * b;
    }
    f32::from_bits(narrow(f64::from(a) * f64::from(b), SINGLE, rounding))
}

pub(crate) fn fma32(a: f32, b: f32, c: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::Nearest {
        return a.mul_add(b, c);
    }
    f32::from_bits(sum32(f64::from(a) * f64::from(b), c.into(), rounding))
}

pub(crate) fn div32(a: f32, b: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::Nearest {
        return a / b;
    }
    let (a, b) = (f64::from(a), f64::from(b));
    let quotient = a / b;
    let rest = (-quotient).mul_add(b, a) * if b < 0.0 { -1.0 } else { 1.0 };
    f32::from_bits(narrow(odd(quotient, rest), SINGLE, rounding))
}

pub(crate) fn sqrt32(a: f32, rounding: Rounding) -> f32 {
    if rounding == Rounding::Nearest {
        return a.sqrt();
    }
    let a = f64::from(a);
    let root = a.sqrt();
    f32::from_bits(narrow(odd(root, (-root).mul_add(root, a)), SINGLE, rounding))
}

/// The neighbour of a result to nearest that another mode gives, by the sign of what was cut off.
fn step(nearest: f64, rest: f64, rounding: Rounding) -> f64 {
    if nearest.is_nan() || rest.is_nan() {
        return nearest;
    }
    let up = match rounding {
        Rounding::Nearest => return nearest,
        Rounding::Up => true,
        Rounding::Down => false,
        Rounding::Zero => nearest < 0.0 || (nearest == 0.0 && nearest.is_sign_negative()),
    };
    match (up, rest > 0.0, rest < 0.0) {
        (true, true, _) => nearest.next_up(),
        (false, _, true) => nearest.next_down(),
        _ => nearest,
    }
}

/// A finite result of finite operands that is infinite to nearest.
fn overflow(result: f64, finite: bool, rounding: Rounding) -> Option<f64> {
    if !result.is_infinite() || !finite {
        return None;
    }
    let away = rounding == Rounding::Nearest || rounding.away(result < 0.0);
    Some(if away { result } else { f64::MAX.copysign(result) })
}

pub(crate) fn add64(a: f64, b: f64, rounding: Rounding) -> f64 {
    let (sum, rest) = two_sum(a, b);
    if let Some(result) = overflow(sum, a.is_finite() && b.is_finite(), rounding) {
        return result;
    }
    if sum == 0.0 && rounding == Rounding::Down && (a != 0.0 || a.is_sign_negative() != b.is_sign_negative())
    {
        return -0.0;
    }
    step(sum, rest, rounding)
}

pub(crate) fn mul64(a: f64, b: f64, rounding: Rounding) -> f64 {
    let product = a * b;
    if rounding == Rounding::Nearest {
        return product;
    }
    if let Some(result) = overflow(product, a.is_finite() && b.is_finite(), rounding) {
        return result;
    }
    if product.is_finite() && product.abs() < 1e-250 && a != 0.0 && b != 0.0 {
        // the rest would vanish: compare in a scale where it does not
        let (big_a, big_b) = (scaled(a), scaled(b));
        let exact_sign = scaled_compare(big_a, big_b, product);
        return step(product, exact_sign, rounding);
    }
    step(product, a.mul_add(b, -product), rounding)
}

/// Significand as an integer, and exponent.
fn scaled(value: f64) -> (u128, i64) {
    let bits = value.to_bits();
    let raw = ((bits >> 52) & 0x7ff) as i64;
    let significand = (bits & ((1 << 52) - 1)) | if raw == 0 { 0 } else { 1 << 52 };
    (u128::from(significand), raw.max(1) - 1075)
}

/// The sign of `a * b - product`, by integers.
fn scaled_compare(a: (u128, i64), b: (u128, i64), product: f64) -> f64 {
    let exact = (a.0 * b.0, a.1 + b.1);
    let (near, exponent) = scaled(product);
    let shift = exponent - exact.1; // the product is so small that it has the larger exponent
    let sign = if product.is_sign_negative() { -1.0 } else { 1.0 };
    let near = if near == 0 || !(0..=74).contains(&shift) { 0 } else { near << shift };
    match exact.0.cmp(&near) {
        std::cmp::Ordering::Equal => 0.0,
        std::cmp::Ordering::Greater => sign,
        std::cmp::Ordering::Less => -sign,
    }
}

pub(crate) fn div64(a: f64, b: f64, rounding: Rounding) -> f64 {
    let quotient = a / b;
    if rounding == Rounding::Nearest {
        return quotient;
    }
    if let Some(result) = overflow(quotient, a.is_finite() && b != 0.0, rounding) {
        return result;
    }
    let rest = (-quotient).mul_add(b, a) * if b < 0.0 { -1.0 } else { 1.0 };
    step(quotient, rest, rounding)
}

pub(crate) fn sqrt64(a: f64, rounding: Rounding) -> f64 {
    let root = a.sqrt();
    step(root, (-root).mul_add(root, a), rounding)
}

/// Reads an operand of f32, subnormal as zero if so wanted.
pub(crate) fn in32(bits: u64, how: u32) -> f32 {
    flush(f32::from_bits(bits as u32), how)
}

fn flush(value: f32, how: u32) -> f32 {
    if how & FTZ != 0 && value.is_subnormal() { 0f32.copysign(value) } else { value }
}

/// A result of f32 with `.ftz` and `.sat`.
pub(crate) fn out32(value: f32, how: u32) -> u64 {
    let mut value = flush(value, how);
    if how & SAT != 0 {
        value = if value.is_nan() || value <= 0.0 { 0.0 } else { value.min(1.0) };
    }
    u64::from(if value.is_nan() { NAN32 } else { value.to_bits() })
}

pub(crate) fn in64(bits: u64) -> f64 {
    f64::from_bits(bits)
}

pub(crate) fn out64(value: f64) -> u64 {
    value.to_bits()
}

/// One half of a kind as f64, exact.
pub(crate) fn half_in(bits: u64, bfloat: bool) -> f64 {
    f64::from(if bfloat { bf16_to_f32(bits as u16) } else { f16_to_f32(bits as u16) })
}

/// The other way, to nearest, with `.sat` and `.relu`.
pub(crate) fn half_out(value: f64, bfloat: bool, how: u32) -> u64 {
    let mut value = value;
    if how & SAT != 0 {
        value = if value.is_nan() || value <= 0.0 { 0.0 } else { value.min(1.0) };
    }
    if how & RELU != 0 && value <= 0.0 {
        value = 0.0;
    }
    u64::from(narrow(value, if bfloat { BFLOAT } else { HALF }, Rounding::of(how)))
}

/// `a * b + c` of halves: the product is exact in f64, the sum is rounded to odd, so that all is rounded once.
pub(crate) fn half_fma(a: f64, b: f64, c: f64) -> f64 {
    let (sum, rest) = two_sum(a * b, c);
    odd(sum, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::half::{bf16_to_f32, f16_to_f32};
    use proptest::prelude::*;

    const ALL: [Rounding; 4] = [Rounding::Nearest, Rounding::Zero, Rounding::Down, Rounding::Up];

    #[test]
    fn halves_come_back_from_f32() {
        for bits in 0..=u16::MAX {
            for rounding in ALL {
                let (half, bfloat) = (f16_to_f32(bits), bf16_to_f32(bits));
                if !half.is_nan() {
                    assert_eq!(narrow(half.into(), HALF, rounding), u32::from(bits), "{bits:#x}");
                }
                if !bfloat.is_nan() {
                    assert_eq!(narrow(bfloat.into(), BFLOAT, rounding), u32::from(bits), "{bits:#x}");
                }
            }
        }
    }

    #[test]
    fn edges_of_narrowing() {
        let single = |value, rounding| f32::from_bits(narrow(value, SINGLE, rounding));
        assert_eq!(single(1e300, Rounding::Zero), f32::MAX);
        assert_eq!(single(1e300, Rounding::Up), f32::INFINITY);
        assert_eq!(single(-1e300, Rounding::Up), f32::MIN);
        assert_eq!(single(1e-300, Rounding::Up), f32::from_bits(1));
        assert_eq!(single(1e-300, Rounding::Nearest), 0.0);
        assert_eq!(single(f64::from_bits(1), Rounding::Up), f32::from_bits(1));
        assert_eq!(narrow(65519.99, HALF, Rounding::Nearest), 0x7bff);
        assert_eq!(narrow(65520.0, HALF, Rounding::Nearest), 0x7c00);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn narrowing_to_nearest_is_what_the_processor_does(bits: u64) {
            let value = f64::from_bits(bits);
            if !value.is_nan() {
                prop_assert_eq!(narrow(value, SINGLE, Rounding::Nearest), (value as f32).to_bits());
            }
        }

        /// f32 in all modes, against integers: exact sums and products of significands of 24 bits.
        #[test]
        fn directed_results_enclose_the_exact_one(a: i32, b: i32, shift in 0u32..40) {
            let (x, y) = ((a >> 8) as f32, (b >> 8) as f32 / (1u64 << shift) as f32);
            let exact = f64::from(x) * f64::from(y);
            let (down, up) = (mul32(x, y, Rounding::Down), mul32(x, y, Rounding::Up));
            prop_assert!(f64::from(down) <= exact && f64::from(up) >= exact);
            prop_assert!(up == down || up == down.next_up());
            prop_assert!([down, up].contains(&(x * y)));
            let (down, up) = (add32(x, y, Rounding::Down), add32(x, y, Rounding::Up));
            prop_assert!(up == down || up == down.next_up());
            prop_assert!([down, up].contains(&(x + y)));
            let (down, up) = (div64(x.into(), y.into(), Rounding::Down), div64(x.into(), y.into(), Rounding::Up));
            let nearest = f64::from(x) / f64::from(y);
            if nearest.is_finite() && nearest != 0.0 {
                prop_assert!(up == down || up == down.next_up());
                prop_assert!([down, up].contains(&nearest));
            }
        }

        #[test]
        fn small_products_of_doubles_are_enclosed(a in 1u64..1 << 52, b in 1u64..1 << 52, by in 0i32..300) {
            let (x, y) = (a as f64 * 1e-160, b as f64 * 2f64.powi(-by - 500));
            let (down, up) = (mul64(x, y, Rounding::Down), mul64(x, y, Rounding::Up));
            prop_assert!(up == down || up == down.next_up(), "{down:e} {up:e}");
            prop_assert!([down, up].contains(&(x * y)));
        }
    }
}
