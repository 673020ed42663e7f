//! What every library around the agent does for it, whatever way allocations take to the agent.
//!
//! `settings` reads the environment of a process that begins, `own_allocator` is memory for our own Rust code, and `threads`
//! starts and ends the drain thread and notices the ends of the program's threads. `liballocsample.so` (`preload`),
//! `liballocsample.a` (`archive`) and the global allocator for Rust programs (`global`) are such libraries. The last two are
//! parts of the program (`part_of_program`).

mod errno;
mod here;
mod own_allocator;
mod part_of_program;
mod settings;
mod threads;

pub use errno::KeepErrno;
pub use here::here;
pub use own_allocator::{OwnAllocator, Shortage};
pub use part_of_program::{Lookup, MARK, Mark, switch_on_if_asked};
pub use settings::{
    called_as, check_directory, entries, has_more_rights_than_its_caller, read as read_settings,
};
pub use threads::{Front, hooks, make_thread_key, on_shortage};
