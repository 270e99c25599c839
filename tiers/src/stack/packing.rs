//! Packs segments on their way to a slower tier, stripe by stripe, where that pays there.
//!
//! Used by the copier; what is remembered from one segment to the next ([`Packing`]) belongs to the thread of a tier.
//! What frames were compressed by on the first tier was chosen for its speed; here each MiB is chosen for again by the
//! speed of this link. Frames keep their bytes and checksums: a segment is packed as it is ([`crate::format::packed`]).
//! Invariant: a segment of which nothing was packed is written byte for byte, and can be mapped where the tier can.

use crate::codec::choice::Relief;
use crate::codec::{Choices, Codec, Compression, Packer};
use crate::format::packed::{self, STRIPE, Stripe};
use crate::link_meter::LinkMeter;
use holdfast_image::Addr;
use xxhash_rust::xxh3::xxh3_64;

/// What is believed of a lower tier before anything was measured, bytes per second: a network.
const UNKNOWN: f64 = 100e6;

/// How segments are packed for one tier.
pub struct Packing {
    pub(super) link: LinkMeter,
    rate: Option<u64>,
}

impl Packing {
    /// For a tier that gets at most `rate` bytes per second, if there is a bound.
    pub fn new(rate: Option<u64>) -> Packing {
        Packing { link: LinkMeter::believing(UNKNOWN), rate }
    }

    fn relief(&self) -> Relief {
        // One thread packs; what goes far is sent by others meanwhile.
        Relief { link: self.link.speed(self.rate), processors: 1.0, threads: 2.0 }
    }
}

/// One segment that is being packed.
pub(super) struct SegmentPacker<'a> {
    packing: &'a Packing,
    packer: Packer,
    choices: Choices,
    segment_len: u64,
    /// What of the stripe is here.
    stripe: Vec<u8>,
    stripes: Vec<Stripe>,
}

impl<'a> SegmentPacker<'a> {
    pub(super) fn new(packing: &'a Packing, segment_len: u64) -> SegmentPacker<'a> {
        let (packer, choices) = (Packer::new(Compression::Auto), Choices::default());
        SegmentPacker { packing, packer, choices, segment_len, stripe: Vec::new(), stripes: Vec::new() }
    }

    /// Takes the next bytes of the segment; `send` gets what is to be written.
    pub(super) fn take<E>(
        &mut self,
        mut bytes: &[u8],
        send: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            let number = self.stripes.len() as u64;
            let wanted = packed::stripe_len(self.segment_len, number);
            if wanted == 0 {
                return send(bytes); // the tail
            }
            let missing = usize::try_from(wanted).unwrap_or(0) - self.stripe.len();
            let (now, later) = bytes.split_at(missing.min(bytes.len()));
            self.stripe.extend_from_slice(now);
            bytes = later;
            if self.stripe.len() as u64 == wanted {
                self.end_stripe(number, send)?;
            }
        }
        Ok(())
    }

    fn end_stripe<E>(&mut self, number: u64, send: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let first = Addr(number * STRIPE);
        let (codec, data) = self.packer.pack(&self.choices, first, &self.stripe, self.packing.relief());
        let stored_len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.stripes.push(Stripe { codec, stored_len, checksum: xxh3_64(data) });
        send(data)?;
        self.stripe.clear();
        Ok(())
    }

    /// What follows the last bytes of the segment.
    pub(super) fn end(&self) -> Vec<u8> {
        match self.stripes.iter().all(|stripe| stripe.codec == Codec::Raw) {
            true => Vec::new(),
            false => packed::encode(self.segment_len, &self.stripes),
        }
    }
}
