//! Tests of the tables.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

const BASE: u64 = 0x7000_0000_0000;
const CONTEXT: u64 = 0x77;

/// As `memory.rs` does it, with a driver that has memory for every block.
fn allocate(tables: &Tables, owner: usize, bytes: u64) -> Option<u64> {
    if !is_small(bytes) {
        let plan = tables.plan(owner, bytes.next_multiple_of(GRANULE))?;
        return tables.publish(&plan, Lent { name: 0, handle: 1 }, bytes).then_some(plan.address);
    }
    tables.take_small(owner, bytes).or_else(|| {
        let plan = tables.plan(owner, GRANULE)?;
        assert!(tables.publish(&plan, Lent { name: 0, handle: 1 }, 0));
        tables.take_small(owner, bytes)
    })
}

/// All that is in force, from the table that the agent reads.
fn blocks(tables: &Tables) -> Vec<(u64, u64)> {
    let count = super::super::words().block_count.load(Relaxed) as usize;
    let of = |block: &CudaBlock| (block.address.load(Relaxed), block.bytes.load(Relaxed));
    let mut found: Vec<_> =
        tables.blocks.iter().take(count).map(of).filter(|(address, _)| *address != 0).collect();
    found.sort_unstable();
    found
}

fn check(tables: &Tables, model: &BTreeMap<u64, u64>) {
    let (words, blocks) = (super::super::words(), blocks(tables));
    assert!(blocks.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "blocks do not overlap");
    assert_eq!(words.block_bytes.load(Relaxed), blocks.iter().map(|(_, bytes)| bytes).sum::<u64>());
    assert_eq!(words.requested_bytes.load(Relaxed), model.values().sum::<u64>());
    let mut end = 0;
    for (&start, &bytes) in model {
        assert!(start >= end && start % UNIT == 0, "allocations do not overlap");
        end = start + bytes;
        let at = blocks.partition_point(|(address, _)| *address <= start) - 1;
        assert!(end <= blocks[at].0 + blocks[at].1, "an allocation lies in one block");
        for inside in [start, start + bytes / 2, end - 1] {
            let found = tables.find(inside).unwrap();
            assert_eq!((found.start, found.bytes, found.context), (start, bytes, CONTEXT));
        }
        assert!(tables.find(end).is_none_or(|other| other.start == end));
    }
}

fn steps() -> impl Strategy<Value = Vec<(u8, u64, usize)>> {
    proptest::collection::vec((0..10_u8, any::<u64>(), any::<usize>()), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    /// One test alone may use the tables: they are the process's.
    #[test]
    fn allocations_are_where_the_model_has_them(steps in steps()) {
        forked();
        super::super::words().clear();
        assert!(prepare());
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        locked(|tables| {
            assert!(tables.add_arena(0, BASE, 64 * GRANULE, false));
            assert!(!tables.add_arena(0, BASE, 64 * GRANULE, false), "once");
            assert_eq!(tables.room(), (GRANULES as u64 - 64) * GRANULE);
            assert!(!tables.add_arena(1, 2 * BASE, tables.room() + GRANULE, false), "too much");
            assert_eq!((tables.has_arena(0), tables.has_arena(1)), (Some(true), None));
            let owner = tables.add_owner(CONTEXT, 0).unwrap();
            for (what, bytes, which) in steps {
                let nth = which.checked_rem(model.len()).and_then(|nth| model.keys().nth(nth).copied());
                match (what, nth) {
                    (0..4, Some(address)) => {
                        if let Some(leaving) = tables.release(address) {
                            tables.left(&leaving);
                        }
                        model.remove(&address);
                    }
                    (4, _) => {
                        if let Some(leaving) = tables.leave_empty() {
                            tables.left(&leaving);
                        }
                    }
                    (5, _) => {
                        let found = allocate(tables, owner, bytes % (8 * GRANULE) + 1);
                        found.map(|address| model.insert(address, bytes % (8 * GRANULE) + 1));
                    }
                    _ => {
                        let bytes = bytes % (1 << (which % 21)) + 1;
                        allocate(tables, owner, bytes).map(|address| model.insert(address, bytes));
                    }
                }
                check(tables, &model);
            }
            // All end with their context; then all addresses are free.
            while let Some(leaving) = tables.leave_of(CONTEXT) {
                tables.left(&leaving);
            }
            check(tables, &BTreeMap::new());
            assert_eq!(allocate(tables, owner, 64 * GRANULE), Some(BASE));
        });
    }
}
