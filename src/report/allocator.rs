//! Which functions are the allocator, and so never to blame for an allocation.

use allocsample_profile::Frame;

/// Names of allocation functions, and beginnings of names (those that end in `*`).
const ALLOCATORS: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "__libc_*alloc",
    "operator new*",
    "__rust_alloc*",
    "__rust_realloc*",
    "__rdl_alloc*",
    "__rdl_realloc*",
    "__rustc::__rust_*",
    "__rustc::__rdl_*",
    "alloc::alloc::*",
    "<alloc::alloc::Global as core::alloc::*",
    "alloc::raw_vec::*",
    "<alloc::raw_vec::*",
    "je_*",
    "tc_*",
    "mi_*",
    "std::__new_allocator<*",
    "__gnu_cxx::new_allocator<*",
    "std::allocator_traits<*",
    "std::allocator<*",
];

fn is_allocator(function: &str) -> bool {
    ALLOCATORS
        .iter()
        .any(|pattern| match pattern.split_once('*') {
            None => function == *pattern,
            Some((start, end)) => function.starts_with(start) && function.ends_with(end),
        })
}

/// The frame that an allocation is charged to: the first one outside the allocator, or the leaf if there is no other. In
/// the heap of a virtual machine that is the machine's language (`machine` is the heap's name): the native frames before
/// it are how the machine allocates.
pub fn charged_frame<'a>(frames: &'a [Frame], machine: Option<&str>) -> Option<&'a Frame> {
    frames
        .iter()
        .find(|frame| machine.is_some_and(|machine| frame.module == machine))
        .or_else(|| frames.iter().find(|frame| !is_allocator(&frame.function)))
        .or(frames.first())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_of_malloc_are_allocators_and_their_callers_are_not() {
        for name in [
            "malloc",
            "operator new(unsigned long)",
            "__libc_malloc",
            "alloc::alloc::alloc",
            "tc_malloc",
        ] {
            assert!(is_allocator(name), "{name}");
        }
        for name in [
            "xmalloc",
            "PyObject_Malloc",
            "mallocate",
            "main",
            "operator delete(void*)",
        ] {
            assert!(!is_allocator(name), "{name}");
        }
    }
}
