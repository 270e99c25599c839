//! Half precision: IEEE binary16 and bfloat16 to and from f32. Called by `float`, `convert`, `alu`.

/// Exact.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let (sign, exponent, fraction) =
        (u32::from(bits >> 15) << 31, (bits >> 10) & 31, u32::from(bits & 0x3ff));
    match exponent {
        0 => {
            let value = fraction as f32 / 16_777_216.0; // 2^-24
            f32::from_bits(value.to_bits() | sign)
        }
        31 => f32::from_bits(sign | 0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((u32::from(exponent) + 112) << 23) | (fraction << 13)),
    }
}

/// Exact.
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
