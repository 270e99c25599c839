//! Records read back from a mapped log, all checked.
//!
//! Called by writer and reader. Invariant: the commit word is read before what it commits, and compared with it after.

use crate::layout::{self, Entry, FileHead, RECORD_HEAD, RecordHead};
use holdfast_sys::mapped_buffer::MappedBuffer;
use std::io;

/// One record.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub head: RecordHead,
    pub entries: Vec<Entry>,
    /// What commits it.
    pub word: u64,
}

/// The record at a position. `None`: none was committed there.
pub(crate) fn read(map: &MappedBuffer, file: &FileHead, position: u64) -> Option<Record> {
    let place = file.place(position);
    let word = map.long(place).ok()?;
    let mut head = [0; RECORD_HEAD];
    map.read(place, &mut head).ok()?;
    let head = RecordHead::parse(&head, position, file)?;
    let mut table = vec![0; usize::try_from(head.table_len).ok()?];
    map.read(place + RECORD_HEAD as u64, &mut table).ok()?;
    if head.commit(file, &table) != word {
        return None;
    }
    Some(Record { head, entries: layout::parse_table(&head, &table)?, word })
}

/// Whether nothing was ever committed at the beginning of a log: the word there is 0 only until it was, and no commit
/// word is 0.
pub(crate) fn is_new(map: &MappedBuffer, file: &FileHead, first: u64) -> io::Result<bool> {
    Ok(first == 0 && map.long(file.place(0))? == 0)
}
