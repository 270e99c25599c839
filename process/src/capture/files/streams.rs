//! Which descriptors are standard streams as the program was given them: a restart may give it its own in their place.
//!
//! Called by [`super::FileReader::tables`], inside the stop: up to three kcmp(2) for each description that may be one.
//! The front still has what it gave: the same open file description is the same stream. Where there is no front (it
//! was killed; a job that was attached to), and for a file that a restart has opened again, a descriptor of the same
//! number that leads to the same file is. How it fails: a stream that is not known stays what it is.

use super::{FileReader, Found};
use holdfast_image::record::{Description, Object};
use holdfast_image::streams::STREAMS;
use holdfast_sys::clone;
use std::cmp::Ordering;

impl FileReader<'_> {
    /// Notes the streams of a description, of which `found` is one descriptor.
    pub(super) fn note_streams(&self, found: &Found, is_first: bool, description: &mut Description) {
        for number in STREAMS {
            let is_it = match description.object {
                Object::Inherited { .. } if is_first => {
                    self.is_of_front(found, number).unwrap_or_else(|| self.is_given(found, number))
                }
                // Another one that the program has opened itself looks the same.
                Object::Device { .. } if is_first => self.is_of_front(found, number) == Some(true),
                Object::Regular { .. } => {
                    found.fd == number && self.is_given(found, number)
                        || is_first && self.is_of_front(found, number) == Some(true)
                }
                _ => false,
            };
            if is_it {
                description.streams |= 1 << number;
            }
        }
    }

    /// Whether it is the very description that the front has under a number; `None`: there is no front.
    fn is_of_front(&self, found: &Found, number: i32) -> Option<bool> {
        let (front, pid) = (self.outside.front?, self.leads_from(found).0);
        let order = clone::order_of_descriptions(front, number, pid, found.fd);
        Some(order.is_ok_and(|order| order == Ordering::Equal))
    }

    /// Whether the program was given what it leads to, under a number.
    fn is_given(&self, found: &Found, number: i32) -> bool {
        self.outside.inherited.contains(&(number, found.device, found.inode))
    }
}
