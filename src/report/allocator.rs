//! Which functions are the allocator, and so never to blame for an allocation or a free.

use allocsample_profile::{Frame, HeapId, Profile};

/// Names of functions that allocate and free, and beginnings of names (those that end in `*`).
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
    "free",
    "free_sized",
    "free_aligned_sized",
    "__libc_free",
    "operator new*",
    "operator delete*",
    "__rust_alloc*",
    "__rust_realloc*",
    "__rust_dealloc*",
    "__rdl_alloc*",
    "__rdl_realloc*",
    "__rdl_dealloc*",
    // What a Rust compiler makes to drop a value: its caller lets it go.
    "core::ptr::drop_in_place<*",
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
    // libgc's entries.
    "GC_malloc*",
    "GC_generic_malloc*",
    "GC_calloc*",
    "GC_memalign",
    "GC_posix_memalign",
    "GC_realloc",
    "GC_strdup",
    "GC_strndup",
    // RPython's collector, in C: it is part of each program that was translated.
    "pypy_g_IncrementalMiniMarkGC_*",
    "pypy_g_ArenaCollection_*",
    "pypy_g__ll_malloc_*",
    "pypy_g_ll_malloc_*",
    "rpy_allocsample_*",
];

pub(crate) fn is_allocator(function: &str) -> bool {
    ALLOCATORS
        .iter()
        .any(|pattern| match pattern.split_once('*') {
            None => function == *pattern,
            Some((start, end)) => function.starts_with(start) && function.ends_with(end),
        })
}

/// The frame that an allocation is charged to: the first one outside the allocator, or the leaf if there is no other.
///
/// Where a virtual machine's language runs, the machine's own native code counts as allocator: it is how the language
/// allocates. So in the machine's heap the first frame of the language is charged; of a block of malloc too, unless
/// native code of somebody else (an extension) comes before it. Node.js has functions of its own in JavaScript
/// (`node:buffer`), which are passed by for the program's.
pub fn charged_frame<'a>(
    profile: &Profile,
    heap: HeapId,
    frames: &'a [Frame],
) -> Option<&'a Frame> {
    let is_allocator = |frame: &Frame| is_allocator(&frame.function);
    let position = charged_position(profile, heap, frames, |frame| frame, is_allocator)?;
    frames.get(position)
}

/// The same for frames in any form: the index of the frame.
pub(crate) fn charged_position<'a, F>(
    profile: &Profile,
    heap: HeapId,
    frames: &'a [F],
    frame_of: impl Fn(&'a F) -> &'a Frame,
    is_allocator: impl Fn(&F) -> bool,
) -> Option<usize> {
    let heaps = &profile.vm.heaps;
    let module_of = |frame: &'a F| frame_of(frame).module.as_str();
    let is_of_language = |frame: &'a F| match heaps.get(&heap) {
        Some(machine) => module_of(frame) == machine.name,
        None => heaps
            .values()
            .any(|machine| module_of(frame) == machine.name),
    };
    let is_of_program = |frame: &'a F| {
        let file = frame_of(frame).file.as_deref();
        is_of_language(frame) && !file.is_some_and(|file| file.starts_with("node:"))
    };
    let outside = || frames.iter().position(|frame| !is_allocator(frame));
    // The first native frame, outside the allocator, of a module that is not the machine's. The frame next to the
    // language is the machine's: it is what its interpreter called. Code of no module is the machine's too: what it made
    // for itself, as V8 does with the code that leads from JavaScript to C++.
    let native_of_others = |native: &'a [F]| {
        let of_modules = || native.iter().filter(|frame| !module_of(frame).is_empty());
        let machine = module_of(of_modules().next_back()?);
        let is_libc = |module: &str| module.starts_with("libc.so") || module.starts_with("libc-");
        native.iter().position(|frame| {
            let module = module_of(frame);
            !is_allocator(frame) && module != machine && !module.is_empty() && !is_libc(module)
        })
    };
    let charged = match frames.iter().position(is_of_language) {
        Some(language) if heaps.contains_key(&heap) => Some(language),
        Some(language) => native_of_others(&frames[..language])
            .or_else(|| frames.iter().position(is_of_program))
            .or(Some(language)),
        None => outside(),
    };
    charged
        .or_else(outside)
        .or((!frames.is_empty()).then_some(0))
}

#[cfg(test)]
mod tests {
    use allocsample_profile::Heap;

    use super::*;

    #[test]
    fn wrappers_of_malloc_are_allocators_and_their_callers_are_not() {
        for name in [
            "malloc",
            "operator new(unsigned long)",
            "__libc_malloc",
            "alloc::alloc::alloc",
            "tc_malloc",
            "free",
            "operator delete(void*)",
            "core::ptr::drop_in_place<alloc::string::String>",
            "pypy_g_IncrementalMiniMarkGC_collect_and_reserve",
        ] {
            assert!(is_allocator(name), "{name}");
        }
        for name in [
            "xmalloc",
            "PyObject_Malloc",
            "mallocate",
            "pypy_g_bottom_up",
            "main",
            "free_list",
        ] {
            assert!(!is_allocator(name), "{name}");
        }
    }

    #[test]
    fn the_language_is_charged_for_what_its_machine_allocates() {
        let frame = |(function, module): (&str, &str)| Frame {
            function: function.to_owned(),
            file: None,
            line: 0,
            module: module.to_owned(),
            is_symbolized: true,
        };
        let mut profile = Profile::default();
        let machine = HeapId(1);
        let heap = Heap {
            name: "python".to_owned(),
            kind: None,
            exact_bytes: 0,
        };
        profile.vm.heaps.insert(machine, heap);
        let charged = |heap, stack: &[(&str, &str)]| {
            let frames: Vec<Frame> = stack.iter().copied().map(frame).collect();
            charged_frame(&profile, heap, &frames).map(|frame| frame.function.clone())
        };
        let resize = ("PyByteArray_Resize", "libpython3.so");
        let call = ("_PyObject_MakeTpCall", "libpython3.so");
        let (serve, main) = (("serve", "python"), ("main", "python3"));
        let extension = ("parse", "_json.so");
        let is = |name: &str| Some(name.to_owned());
        assert_eq!(charged(machine, &[call, serve, main]), is("serve"));
        assert_eq!(
            charged(HeapId::MALLOC, &[resize, call, serve, main]),
            is("serve")
        );
        assert_eq!(
            charged(HeapId::MALLOC, &[resize, extension, call, serve]),
            is("parse")
        );
        let dup = ("strdup", "libc.so.6");
        assert_eq!(charged(HeapId::MALLOC, &[dup, call, serve]), is("serve"));
        assert_eq!(charged(HeapId::MALLOC, &[dup, main]), is("strdup"));
        assert_eq!(charged(HeapId::MALLOC, &[serve, main]), is("serve"));
    }
}
