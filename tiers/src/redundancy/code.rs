//! Parity of a stripe, and what was lost of it.
//!
//! One part of parity is the XOR of the data; more are Reed-Solomon's. Called piece by piece: all pieces of a call have
//! one length. Invariant: what is restored is what was there, if what is left is; whether it is, sums tell
//! ([`super::StripeSums`]). Fails by: [`TooMany`].

use reed_solomon_simd::{decode, encode};

/// See the head of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// Parts of a stripe that are data.
    pub data: usize,
    /// Parts that are parity.
    pub parity: usize,
}

/// More parts of a stripe are lost than there is parity, or the pieces do not fit together; in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TooMany(pub String);

impl Code {
    /// The parity of these pieces of data.
    ///
    /// # Errors
    /// There are too few of them, or their lengths differ.
    pub fn parity(&self, data: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, TooMany> {
        if data.len() != self.data {
            return Err(TooMany(format!("{} parts of a stripe are there of {}", data.len(), self.data)));
        }
        if self.parity == 1 {
            return xor(data.iter()).map(|sum| vec![sum]);
        }
        encode(self.data, self.parity, data).map_err(|error| TooMany(error.to_string()))
    }

    /// Fills in what is lost of the data: parts as [`super::Layout::stripe`] has them, parity first.
    ///
    /// # Errors
    /// Too much is lost.
    pub fn restore(&self, parts: &mut [Option<Vec<u8>>]) -> Result<(), TooMany> {
        let there = parts.iter().flatten().count();
        if parts.len() != self.data + self.parity || there < self.data {
            let all = self.data + self.parity;
            return Err(TooMany(format!(
                "{there} parts of a stripe of {all} are left, and {} are needed",
                self.data
            )));
        }
        let (parity, data) = parts.split_at_mut(self.parity);
        if data.iter().all(Option::is_some) {
            return Ok(());
        }
        if self.parity == 1 {
            let sum = xor(data.iter().chain(parity.iter()).flatten())?;
            data.iter_mut().filter(|part| part.is_none()).for_each(|part| *part = Some(sum.clone()));
            return Ok(());
        }
        let known = |parts: &[Option<Vec<u8>>]| -> Vec<(usize, Vec<u8>)> {
            parts.iter().enumerate().filter_map(|(at, part)| Some((at, part.clone()?))).collect()
        };
        let restored = decode(self.data, self.parity, known(data), known(parity));
        for (at, piece) in restored.map_err(|error| TooMany(error.to_string()))? {
            if let Some(part) = data.get_mut(at) {
                *part = Some(piece);
            }
        }
        Ok(())
    }
}

/// The XOR of pieces of one length.
fn xor<'a>(mut pieces: impl Iterator<Item = &'a Vec<u8>>) -> Result<Vec<u8>, TooMany> {
    let mut sum = pieces.next().cloned().unwrap_or_default();
    for piece in pieces {
        if piece.len() != sum.len() {
            return Err(TooMany(format!("pieces of {} and {} bytes", sum.len(), piece.len())));
        }
        sum.iter_mut().zip(piece).for_each(|(sum, byte)| *sum ^= byte);
    }
    Ok(sum)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{Layout, Part};
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    /// The bytes from `offset` on, padded with zeros.
    fn cut(stream: &[u8], offset: u64, len: u64) -> Vec<u8> {
        (offset..offset + len).map(|at| stream.get(at as usize).copied().unwrap_or(0)).collect()
    }

    /// What each member of a group has: its stream, and its parity.
    fn encoded(streams: &[Vec<u8>], losses: usize) -> (Layout, Vec<Vec<u8>>) {
        let lens: Vec<u64> = streams.iter().map(|stream| stream.len() as u64).collect();
        let layout = Layout::new(&lens, losses).unwrap();
        let code = Code { data: layout.data(), parity: losses };
        let mut parity = vec![vec![0; layout.parity_len() as usize]; streams.len()];
        for stripe in 0..streams.len() {
            let places = layout.stripe(stripe);
            let data: Vec<Vec<u8>> = places[losses..]
                .iter()
                .map(|at| cut(&streams[at.member], at.offset, layout.chunk()))
                .collect();
            for (at, made) in places.iter().zip(code.parity(&data).unwrap()) {
                let begin = at.offset as usize;
                parity[at.member][begin..begin + made.len()].copy_from_slice(&made);
            }
        }
        (layout, parity)
    }

    /// A member's stream of what the others have.
    fn rebuilt(
        member: usize,
        lost: &[usize],
        (layout, losses): (&Layout, usize),
        (streams, parity): (&[Vec<u8>], &[Vec<u8>]),
    ) -> Result<Vec<u8>, TooMany> {
        let code = Code { data: layout.data(), parity: losses };
        let mut stream = Vec::new();
        for d in layout.data_parts() {
            let places = layout.stripe(layout.stripe_of(member, d));
            let part = |at: &super::super::Place| {
                let bytes = match at.part {
                    Part::Data => &streams[at.member],
                    Part::Parity => &parity[at.member],
                };
                (!lost.contains(&at.member)).then(|| cut(bytes, at.offset, layout.chunk()))
            };
            let mut parts: Vec<Option<Vec<u8>>> = places.iter().map(part).collect();
            code.restore(&mut parts)?;
            stream.extend(parts[d].take().unwrap());
        }
        Ok(stream)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_lost_is_rebuilt_byte_for_byte_and_one_loss_more_is_refused(
            (streams, losses, lost) in (2_usize..9, 1_usize..4)
                .prop_filter("a group", |(members, losses)| members > losses)
                .prop_flat_map(|(members, losses)| {
                    let streams = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..900), members);
                    let lost = subsequence((0..members).collect::<Vec<_>>(), losses + 1);
                    (streams, Just(losses), lost)
                })
        ) {
            let (layout, parity) = encoded(&streams, losses);
            for member in &lost[..losses] {
                let stream = rebuilt(*member, &lost[..losses], (&layout, losses), (&streams, &parity)).unwrap();
                prop_assert_eq!(&stream[..streams[*member].len()], &streams[*member][..]);
                prop_assert!(stream[streams[*member].len()..].iter().all(|byte| *byte == 0));
            }
            if layout.chunk() > 0 {
                let more = rebuilt(lost[0], &lost, (&layout, losses), (&streams, &parity));
                prop_assert!(more.unwrap_err().0.contains("are needed"));
            }
        }
    }
}
