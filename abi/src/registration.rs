//! Why a process registers with the agent: the field `event` of the message (`holdfast_image::control::Request`).

/// The library was loaded: a program begins.
pub const EVENT_LOAD: &str = "load";
/// The process was forked.
pub const EVENT_FORK: &str = "fork";
/// The process became a session leader.
pub const EVENT_SETSID: &str = "setsid";
