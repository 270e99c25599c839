//! `holdfast check`: whether a checkpoint could be taken now, and what is in its way.

use crate::exit::{Exit, Failure};
use crate::{inspect, report};
use std::path::Path;

/// Prints what is found.
///
/// # Errors
/// There is no such job or process, or it may not be looked at; a checkpoint would be refused.
pub fn run(program: &str, json: bool, root: Option<&Path>) -> Result<(), Failure> {
    let inspected = inspect::find(program, root)?;
    if json {
        report::print_json("check", inspected.to_json())?;
    } else {
        report::print(&inspected.to_string())?;
    }
    // The last line has said it.
    if inspected.is_checkpointable() { Ok(()) } else { Err(Failure::new(Exit::Refused, "")) }
}
