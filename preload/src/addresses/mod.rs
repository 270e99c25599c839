//! Addresses of hosts after a restart elsewhere: the program goes on with those that it knows, the kernel has others.
//!
//! Runs in: the host program, any thread, also in signal handlers and before constructors. Invariants: while the tables
//! are empty (always, but after such a restart) nothing is looked at, and every call goes where it would have gone; an
//! address that is not in them is the same on both sides; addresses of other families are never changed. The tables are
//! an `AddressTable` of the crate `abi` in the library's .bss, inherited by fork; a program that is executed reads them
//! of a file beside the agent's socket ([`start`]). Fails by: leaving addresses as they are.
//! Not translated: addresses in messages and in control data (IP_PKTINFO), what getifaddrs(3) tells, calls that bypass
//! the C library.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`table`] | the tables, and what they make of an address |
//! | [`hooks`] | the functions of the C library |
//! | [`calls`] | what is done before and after a call |
//! | `by_number` | calls by `syscall(2)` |

#[cfg(not(test))]
mod by_number;
mod calls;
mod hooks;
mod table;

#[cfg(not(test))]
pub use by_number::by_number;
pub use hooks::within;
#[cfg(not(test))]
pub use table::TABLE;
pub use table::start;
