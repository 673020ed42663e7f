//! Whether a thread can be borrowed: stopped where it is, made to call `pthread_create`, and put back.
//!
//! That function allocates, and takes locks of the C library for a moment. A thread inside the allocator, the loader
//! or the C library may hold those locks, or may have left data half changed; the call would then deadlock. So a
//! thread can be borrowed if
//!
//! - it runs code outside the C library, the loader and any allocator; or it waits in a system call in which programs
//!   usually wait, and which none of those makes while it holds a lock;
//! - it is not in a signal handler that interrupted such code: the signal frames on its stack say where it was;
//! - if it waits in a futex, it waits neither for an allocator's lock nor, as `setuid` does, for all other threads:
//!   none of those functions is on its stack.
//!
//! Constructors of libraries are no obstacle: the loader's lock is held, but starting a thread does not take it.

use std::ops::Range;

use crate::frame::signal_frame_at;
use crate::image::{Image, Memory};
use crate::machine::{
    self, Registers, SIGNAL_RETURN, WAITING_CALLS, code_address, interrupted_call,
};
use crate::target::{Mapping, file_name, is_agent};

/// How many bytes of a stack are searched for signal frames.
const MOST_STACK_BYTES: u64 = 1 << 20;

/// How many bytes of a stack are searched for the caller of a function that waits for a lock.
const LOCK_FRAME_BYTES: usize = 256;

/// The C library's allocator has unnamed functions before and between the named ones: it is one object file of 25
/// KiB.
const ALLOCATOR_MARGIN: u64 = 16 << 10;

const ALLOCATOR_FUNCTIONS: [&str; 12] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "memalign",
    "posix_memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "malloc_usable_size",
    "malloc_trim",
    "malloc_info",
];

/// Functions of the C library that wait for every thread, with a lock that `pthread_create` takes.
const ASKING_ALL_THREADS: [&str; 9] = [
    "setuid",
    "setgid",
    "seteuid",
    "setegid",
    "setreuid",
    "setregid",
    "setresuid",
    "setresgid",
    "setgroups",
];

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It can be borrowed.
    Free,
    /// Not now; a few instructions later it may be possible.
    Busy,
    /// Not until this system call ends.
    Waiting,
}

/// The parts of a process's code where a thread must not be borrowed.
pub(crate) struct Forbidden {
    /// Code that a borrowed thread must not be running.
    running: Vec<Range<u64>>,
    loader: Vec<Range<u64>>,
    /// Code that must not have led to the futex in which a borrowed thread waits.
    locking: Vec<Range<u64>>,
    /// Functions of the C library that ask every thread.
    asking: Vec<Range<u64>>,
    /// Where signal handlers return to.
    signal_returns: Vec<u64>,
    mappings: Vec<Mapping>,
}

impl Forbidden {
    pub fn find(memory: &Memory, mappings: Vec<Mapping>) -> Self {
        let mut forbidden = Self {
            running: Vec::new(),
            loader: Vec::new(),
            locking: Vec::new(),
            asking: Vec::new(),
            signal_returns: Vec::new(),
            mappings: Vec::new(),
        };
        for module in modules(&mappings) {
            let of_module = mappings.iter().filter(|other| other.path == module.path);
            let code: Vec<Range<u64>> = of_module
                .filter(|mapping| mapping.is_executable)
                .map(|mapping| mapping.start..mapping.end)
                .collect();
            forbidden.add(memory, module, code);
        }
        // The kernel's own code, which the C library calls.
        let special = mappings
            .iter()
            .filter(|mapping| mapping.path.starts_with('[') && mapping.is_executable);
        let special = special.map(|mapping| mapping.start..mapping.end);
        forbidden.running.extend(special);
        forbidden.mappings = mappings;
        forbidden
    }

    fn add(&mut self, memory: &Memory, module: &Mapping, code: Vec<Range<u64>>) {
        let name = file_name(&module.path);
        if name.starts_with("ld-linux") || name.starts_with("ld-2.") {
            self.running.extend(code.iter().cloned());
            self.loader.extend(code);
            return;
        }
        if is_agent(module) {
            return;
        }
        let Ok(image) = Image::read(memory, module.start) else {
            return;
        };
        let functions = ALLOCATOR_FUNCTIONS
            .iter()
            .filter_map(|name| image.function(name));
        let functions: Vec<Range<u64>> = functions.map(|function| function.range()).collect();
        if is_c_library(name) {
            let first = functions.iter().map(|function| function.start).min();
            let last = functions.iter().map(|function| function.end).max();
            self.locking.extend(first.zip(last).map(|(first, last)| {
                first.saturating_sub(ALLOCATOR_MARGIN)..last + ALLOCATOR_MARGIN
            }));
            let waiting = ASKING_ALL_THREADS
                .iter()
                .filter_map(|name| image.function(name));
            self.asking.extend(waiting.map(|function| function.range()));
            let creating = image.function("pthread_create");
            self.locking.extend(self.asking.iter().cloned());
            self.locking
                .extend(creating.map(|function| function.range()));
            for range in &code {
                let bytes = memory.read_some(range.start, (range.end - range.start) as usize);
                let found = bytes.windows(SIGNAL_RETURN.len()).enumerate();
                let found = found.filter(|(_, window)| *window == SIGNAL_RETURN);
                self.signal_returns
                    .extend(found.map(|(at, _)| range.start + at as u64));
            }
            self.running.extend(code);
        } else if image.function("malloc").is_some() {
            // A library of this purpose; or a program with an allocator in it, only some of whose functions have
            // names.
            let is_library = name.contains(".so");
            self.locking.extend(match is_library {
                true => code.clone(),
                false => functions,
            });
            self.running.extend(code);
        }
    }

    /// The low end of the stack that this address lies in, if it is known.
    pub fn end_of_stack(&self, address: u64) -> Option<u64> {
        let stack = self
            .mappings
            .iter()
            .find(|mapping| mapping.contains(address));
        stack.map(|stack| stack.start)
    }

    /// Whether a function that asks every thread called the code that waits with its stack here.
    pub fn is_asking(&self, memory: &Memory, stack: u64) -> bool {
        let bytes = memory.read_some(stack & !7, LOCK_FRAME_BYTES);
        let words = bytes.chunks_exact(8);
        let mut words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap_or([0; 8])));
        words.any(|word| is_in(&self.asking, code_address(word)))
    }

    /// What the thread with these registers is doing.
    pub fn look_at(&self, memory: &Memory, registers: &Registers) -> Standing {
        let (code, stack) = (machine::code(registers), machine::stack(registers));
        let call = interrupted_call(memory, registers);
        let busy = match call {
            Some(call) if !WAITING_CALLS.contains(&call) || is_in(&self.loader, code) => {
                return Standing::Waiting;
            }
            Some(_) => Standing::Waiting,
            None if is_in(&self.running, code) => return Standing::Busy,
            None => Standing::Busy,
        };
        let mapping = |address| self.mappings.iter().find(move |m| m.contains(address));
        // A stack or code that was mapped after the list was read; the next look reads the list again.
        let Some(end) = mapping(stack).filter(|_| mapping(code).is_some()) else {
            return busy;
        };
        let start = stack & !7;
        let bytes = (end.end - start).min(MOST_STACK_BYTES);
        let words: Vec<u64> = memory
            .read_some(start, bytes as usize)
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or([0; 8])))
            .collect();
        let is_return = |word| self.signal_returns.contains(&word);
        let has_interrupted = |at| {
            let frame = signal_frame_at(&words, at, is_return);
            frame.is_some_and(|frame| {
                let interrupted = frame.interrupted;
                interrupted.is_none_or(|code| is_in(&self.running, code))
            })
        };
        let nearest = words.iter().take(LOCK_FRAME_BYTES / 8).copied();
        let mut nearest = nearest.chain(machine::link(registers));
        let is_at_a_lock = call == Some(libc::SYS_futex)
            && nearest.any(|word| is_in(&self.locking, code_address(word)));
        match is_at_a_lock || (0..words.len()).any(has_interrupted) {
            true => busy,
            false => Standing::Free,
        }
    }
}

fn is_in(ranges: &[Range<u64>], address: u64) -> bool {
    ranges.iter().any(|range| range.contains(&address))
}

/// The first mapping of each file.
fn modules(mappings: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    mappings
        .iter()
        .filter(|mapping| mapping.offset == 0 && mapping.path.starts_with('/'))
}

pub(crate) fn is_c_library(name: &str) -> bool {
    ["libc.so.6", "libc-2."]
        .iter()
        .any(|part| name.starts_with(part))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

    use super::*;
    use crate::frame::put_frame;
    use crate::machine::tests::registers;
    use crate::target::Target;

    #[test]
    fn a_thread_is_borrowed_only_outside_of_allocator_and_loader() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let memory = Memory::of(pid).unwrap();
        // At the high end of memory of its own, so that what lies above it is known.
        let stack: Vec<u64> = vec![0; 1 << 20];
        let mappings = Target::find(pid).unwrap().mappings().unwrap();
        let forbidden = Forbidden::find(&memory, mappings);
        let malloc = libc::malloc as *const () as u64;
        let here = is_c_library as *const () as u64;
        let low = stack.as_ptr().expose_provenance() as u64;
        let look = |code, call| {
            let registers = registers(code, low, call);
            forbidden.look_at(&memory, &registers)
        };
        assert_eq!(look(here, None), Standing::Free);
        assert_eq!(look(malloc, None), Standing::Busy);
        assert_eq!(look(libc::getpid as *const () as u64, None), Standing::Busy);
        let waiting = libc::poll as *const () as u64;
        assert_eq!(look(waiting, Some(libc::SYS_ppoll)), Standing::Free);
        assert_eq!(look(waiting, Some(libc::SYS_brk)), Standing::Waiting);
        assert_eq!(look(waiting, Some(libc::SYS_futex)), Standing::Free);
        let mut stack = stack;
        // Every thread is waited for.
        stack[2] = libc::setegid as *const () as u64 + 4;
        assert_eq!(look(waiting, Some(libc::SYS_futex)), Standing::Waiting);
        // This waits for a lock of the allocator. Elsewhere on the stack the same word is a leftover.
        stack[2] = malloc + 4;
        assert_eq!(look(waiting, Some(libc::SYS_futex)), Standing::Waiting);
        assert_eq!(look(waiting, Some(libc::SYS_ppoll)), Standing::Free);
        assert_eq!(look(here, None), Standing::Free);
        // A signal frame, which says where its handler interrupted the thread.
        let return_to = *forbidden.signal_returns.first().unwrap_or(&0);
        for (interrupted, standing) in [(malloc, Standing::Busy), (here, Standing::Free)] {
            put_frame(&mut stack, 1000, return_to, interrupted);
            assert_eq!(look(here, None), standing);
        }
    }

    #[test]
    fn a_signal_frame_says_what_was_interrupted() {
        static FOUND: AtomicBool = AtomicBool::new(false);
        extern "C" fn handler(_signal: i32) {
            let mut here = 0_u64;
            let low = (&raw mut here).expose_provenance() as u64;
            let pid = i32::try_from(std::process::id()).unwrap();
            let memory = Memory::of(pid).unwrap();
            let mappings = Target::find(pid).unwrap().mappings().unwrap();
            let forbidden = Forbidden::find(&memory, mappings);
            // `raise` is in the C library.
            let registers = registers(is_c_library as *const () as u64, low, None);
            let is_busy = forbidden.look_at(&memory, &registers) == Standing::Busy;
            FOUND.store(is_busy, Ordering::Relaxed);
        }
        let handler = SigAction::new(
            SigHandler::Handler(handler),
            SaFlags::empty(),
            SigSet::empty(),
        );
        // SAFETY: the handler runs where `raise` is called, on a thread that holds nothing that it needs.
        unsafe { sigaction(Signal::SIGURG, &handler) }.unwrap();
        nix::sys::signal::raise(Signal::SIGURG).unwrap();
        assert!(FOUND.load(Ordering::Relaxed));
    }
}
