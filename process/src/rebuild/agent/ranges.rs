//! Ranges of pages of an image, where they are put by descriptors and not through mappings.

use holdfast_image::PAGE_SIZE;
use holdfast_image::pages::{Extent, ExtentSource, PageError, PageProvider};
use holdfast_image::record::Region;
use std::io;

/// Bytes that are read from the image at once.
const PIECE_LEN: u64 = 1 << 20;

/// The parts of extents that lie in a region: first byte, first byte after it, and where they are stored.
pub fn within<'a>(
    extents: &'a [Extent],
    region: &Region,
) -> impl Iterator<Item = (u64, u64, ExtentSource)> + use<'a> {
    let (start, end) = (region.start.0, region.end.0);
    let from = extents.partition_point(|extent| extent.run.end().0 <= start);
    extents[from..]
        .iter()
        .take_while(move |extent| extent.run.start.0 < end)
        .map(move |extent| (extent.run.start.0.max(start), extent.run.end().0.min(end), extent.source))
}

/// Reads a range from an image and puts it, with its address, piece by piece.
///
/// # Errors
/// Of reading, or of putting.
pub fn pieces(
    from: u64,
    to: u64,
    pages: &dyn PageProvider,
    put: impl Fn(u64, &[u8]) -> io::Result<()>,
) -> Result<(), PageError> {
    let mut buffer = vec![0_u8; usize::try_from((to - from).min(PIECE_LEN)).unwrap_or(0)];
    let mut at = from;
    while at < to {
        let len = (to - at).min(PIECE_LEN);
        let bytes = &mut buffer[..usize::try_from(len).unwrap_or(0)];
        pages.read(holdfast_image::Addr(at), bytes)?;
        put(at, bytes)?;
        at += len;
    }
    debug_assert!((to - from).is_multiple_of(PAGE_SIZE));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rebuild::testing::region;
    use holdfast_image::pages::PageRun;
    use holdfast_image::record::Backing;
    use holdfast_image::{Addr, PageCount};

    #[test]
    fn extents_are_cut_at_the_mapping() {
        let extent = |page: u64, pages: u64, source| Extent {
            run: PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(pages) },
            source,
        };
        let extents = [
            extent(1, 4, ExtentSource::Stored),
            extent(6, 1, ExtentSource::Zero),
            extent(8, 9, ExtentSource::Stored),
        ];
        let region = region(3 * PAGE_SIZE, 7, 3, Backing::Anonymous);
        let parts: Vec<(u64, u64, ExtentSource)> = within(&extents, &region).collect();
        let (stored, zero) = (ExtentSource::Stored, ExtentSource::Zero);
        let expected = [(3, 5, stored), (6, 7, zero), (8, 10, stored)];
        assert_eq!(parts, expected.map(|(from, to, source)| (from * PAGE_SIZE, to * PAGE_SIZE, source)));
    }
}
