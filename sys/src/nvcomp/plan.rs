//! What is where in the memory of a batch, and what came of it. Pure.
//!
//! From the beginning: addresses and sizes of the chunks, addresses of the output; sizes of the output and statuses;
//! the temporary memory; the output, each chunk's as long as it may ever be. Numbers of 64 bits, statuses of 32.
//! Invariants: nothing that nvCOMP says is trusted: sizes that it cannot need, and sizes of output that cannot be, are
//! found here.

use super::error::NvcompError;
use std::ops::Range;

/// What nvCOMP makes of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One LZ4 block, without a length in front.
    Lz4,
    /// One Zstandard frame.
    Zstd,
}

/// What a format needs for a batch, as nvCOMP says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) temporary_alignment: usize,
    pub(super) temporary: usize,
    pub(super) most: usize,
}

/// A chunk of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Where it begins.
    pub address: u64,
    /// Its length.
    pub bytes: usize,
}

/// See the head of the file.
#[derive(Clone, Debug)]
pub struct Plan {
    format: Format,
    chunks: usize,
    chunk_bytes: usize,
    input_alignment: u64,
    /// From one output to the next, and how long each may be.
    stride: u64,
    most: u64,
    temporary_bytes: usize,
    temporary: u64,
    output: u64,
    bytes: u64,
}

/// Longest temporary memory that is believed: nvCOMP's documentation has no bound.
const MOST_TEMPORARY: usize = 1 << 40;

impl Plan {
    /// Of the memory for a batch, at least: that of cuMemAlloc is aligned so.
    pub const ALIGNMENT: u64 = 256;

    pub(super) fn new(
        format: Format,
        chunks: usize,
        chunk_bytes: usize,
        needs: &Needs,
    ) -> Result<Plan, NvcompError> {
        let nonsense = |what: String| Err(NvcompError::Nonsense { what });
        let alignments = [needs.input, needs.output, needs.temporary_alignment];
        if let Some(wrong) =
            alignments.iter().find(|it| !it.is_power_of_two() || **it as u64 > Plan::ALIGNMENT)
        {
            return nonsense(format!("that memory has to be aligned to {wrong}"));
        }
        if needs.temporary > MOST_TEMPORARY {
            return nonsense(format!(
                "that {chunks} chunks need {} bytes of temporary memory",
                needs.temporary
            ));
        }
        // Both formats store what cannot be packed, with a part in 255 more at most, and some bytes.
        if needs.most < chunk_bytes || needs.most > 2 * chunk_bytes + 65_536 {
            return nonsense(format!("that {chunk_bytes} bytes may become {}", needs.most));
        }
        let up = |value: u64| value.next_multiple_of(Plan::ALIGNMENT);
        let count = chunks as u64;
        let temporary = up(count * 8 * 4 + count * 4);
        let output = up(temporary + needs.temporary as u64);
        let stride = (needs.most as u64).next_multiple_of(needs.output as u64);
        Ok(Plan {
            format,
            chunks,
            chunk_bytes,
            input_alignment: needs.input as u64,
            stride,
            most: needs.most as u64,
            temporary_bytes: needs.temporary,
            temporary,
            output,
            bytes: up(output + stride * count),
        })
    }

    /// Bytes of device memory that the batch takes beside its chunks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of these the temporary ones: those that hold nothing afterwards.
    pub fn temporary_bytes(&self) -> usize {
        self.temporary_bytes
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    pub(super) fn pointers(&self) -> u64 {
        0
    }

    pub(super) fn sizes(&self) -> u64 {
        self.chunks as u64 * 8
    }

    pub(super) fn outputs(&self) -> u64 {
        self.chunks as u64 * 16
    }

    pub(super) fn packed_sizes(&self) -> u64 {
        self.chunks as u64 * 24
    }

    pub(super) fn statuses(&self) -> u64 {
        self.chunks as u64 * 32
    }

    pub(super) fn temporary(&self) -> u64 {
        self.temporary
    }

    /// What has to be at the beginning of the memory at this address before the chunks are packed.
    ///
    /// # Errors
    /// They are not as many as the plan is for, or one is too long, or not aligned.
    pub fn head(&self, workspace: u64, chunks: &[Chunk]) -> Result<Vec<u8>, NvcompError> {
        let refused = |what: String| Err(NvcompError::Chunks { what });
        if chunks.len() != self.chunks {
            return refused(format!("{} chunks in a batch of {}", chunks.len(), self.chunks));
        }
        let fits = |chunk: &Chunk| {
            (1..=self.chunk_bytes).contains(&chunk.bytes)
                && chunk.address.is_multiple_of(self.input_alignment)
        };
        if let Some(chunk) = chunks.iter().find(|chunk| !fits(chunk)) {
            return refused(format!("{chunk:?} in a batch of chunks of {} bytes", self.chunk_bytes));
        }
        let addresses = chunks.iter().map(|chunk| chunk.address);
        let sizes = chunks.iter().map(|chunk| chunk.bytes as u64);
        let outputs = (0..self.chunks as u64).map(|index| workspace + self.output + index * self.stride);
        Ok(addresses.chain(sizes).chain(outputs).flat_map(u64::to_le_bytes).collect())
    }

    /// Where in the memory the results are, to be read when the stream is done.
    pub fn results_at(&self) -> Range<u64> {
        self.packed_sizes()..self.statuses() + self.chunks as u64 * 4
    }

    /// Where in the memory each packed chunk is, given the results. None: it was not packed, or not to less than it
    /// was; it goes as it is.
    pub fn results(&self, chunks: &[Chunk], bytes: &[u8]) -> Vec<Option<Range<u64>>> {
        let sizes = bytes.as_chunks::<8>().0.iter().take(self.chunks);
        let statuses = bytes.get(self.chunks * 8..).unwrap_or_default().as_chunks::<4>().0;
        let mut found: Vec<_> = sizes
            .zip(statuses)
            .zip(chunks)
            .enumerate()
            .map(|(index, ((size, status), chunk))| {
                let size = u64::from_le_bytes(*size);
                let is_packed = i32::from_le_bytes(*status) == 0 && size > 0 && size <= self.most;
                let at = self.output + index as u64 * self.stride;
                (is_packed && size < chunk.bytes as u64).then_some(at..at + size)
            })
            .collect();
        found.resize(chunks.len(), None);
        found
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const NEEDS: Needs = Needs { input: 4, output: 4, temporary_alignment: 8, temporary: 1000, most: 66_000 };

    fn plan(chunks: usize, needs: &Needs) -> Result<Plan, String> {
        Plan::new(Format::Lz4, chunks, 65_536, needs).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_overlaps_and_all_is_aligned() {
        for chunks in [1, 2, 3, 64, 1000] {
            let plan = plan(chunks, &NEEDS).unwrap();
            let ends = [plan.sizes(), plan.outputs(), plan.packed_sizes(), plan.statuses()];
            assert_eq!(ends, [8, 16, 24, 32].map(|bytes| chunks as u64 * bytes));
            assert!(plan.results_at().end <= plan.temporary);
            assert!(plan.temporary + 1000 <= plan.output);
            assert!(plan.output + plan.stride * chunks as u64 <= plan.bytes());
            assert!(plan.stride >= 66_000 && plan.stride.is_multiple_of(4));
            assert!([plan.temporary, plan.output].iter().all(|at| at.is_multiple_of(Plan::ALIGNMENT)));
        }
    }

    #[test]
    fn needs_that_cannot_be_are_refused() {
        let wrong = [
            Needs { input: 3, ..NEEDS },
            Needs { output: 0, ..NEEDS },
            Needs { temporary_alignment: 1 << 20, ..NEEDS },
            Needs { temporary: usize::MAX, ..NEEDS },
            Needs { most: 65_535, ..NEEDS },
            Needs { most: usize::MAX, ..NEEDS },
        ];
        for needs in wrong {
            assert!(plan(2, &needs).is_err_and(|text| text.starts_with("nvCOMP says that")), "{needs:?}");
        }
    }

    #[test]
    fn only_chunks_of_the_plan_are_packed() {
        let plan = plan(2, &NEEDS).unwrap();
        let good = Chunk { address: 1 << 40, bytes: 65_536 };
        let head = plan.head(4096, &[good, Chunk { bytes: 100, ..good }]).unwrap();
        let words: Vec<u64> = head.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let output = 4096 + plan.output;
        assert_eq!(words, [1 << 40, 1 << 40, 65_536, 100, output, output + plan.stride]);
        for wrong in
            [Chunk { address: 6, ..good }, Chunk { bytes: 65_537, ..good }, Chunk { bytes: 0, ..good }]
        {
            assert!(plan.head(4096, &[good, wrong]).is_err(), "{wrong:?}");
        }
        assert!(plan.head(4096, &[good]).is_err());
    }

    #[test]
    fn results_that_cannot_be_are_no_packed_chunks() {
        let plan = plan(5, &NEEDS).unwrap();
        let chunks = [Chunk { address: 0, bytes: 65_536 }; 5];
        let sizes = [100u64, 66_001, 0, 65_536, 7].into_iter().flat_map(u64::to_le_bytes);
        let statuses = [0i32, 0, 0, 0, 19].into_iter().flat_map(i32::to_le_bytes);
        let bytes: Vec<u8> = sizes.chain(statuses).collect();
        let results = plan.results(&chunks, &bytes);
        assert_eq!(results, [Some(plan.output..plan.output + 100), None, None, None, None]);
        assert_eq!(plan.results(&chunks, &bytes[..39]), vec![None; 5]);
    }
}
