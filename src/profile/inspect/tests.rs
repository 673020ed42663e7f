//! Files made for the purpose, and files that nobody would make in good faith.

use std::io::Write;

use proptest::prelude::*;
use tempfile::NamedTempFile;

use super::elf::Elf;
use super::{Contents, inspect};

/// Sections by their name, type and content, behind each other.
fn elf(sections: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
    const HEADER: usize = 64;
    let mut names = b"\0".to_vec();
    let mut contents = Vec::new();
    let mut table = vec![0; HEADER];
    let place = |contents: &Vec<u8>| (HEADER + contents.len()) as u64;
    let mut add = |name: usize, kind: u32, offset: u64, bytes: usize| {
        let flags = 2_u64; // allocated, not writable
        let (link, entry) = if kind == 11 { (1_u32, 24_u64) } else { (0, 0) };
        table.extend((name as u32).to_le_bytes());
        table.extend(kind.to_le_bytes());
        for word in [flags, 0x1000 + offset, offset, bytes as u64] {
            table.extend(word.to_le_bytes());
        }
        table.extend(link.to_le_bytes());
        table.extend(1_u32.to_le_bytes());
        for word in [8, entry] {
            table.extend(word.to_le_bytes());
        }
    };
    for (name, kind, content) in sections {
        add(names.len(), *kind, place(&contents), content.len());
        names.extend(name.as_bytes());
        names.push(0);
        contents.extend(content);
    }
    let name = names.len();
    names.extend(b".shstrtab\0");
    add(name, 3, place(&contents), names.len());
    contents.extend(&names);
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend(3_u16.to_le_bytes()); // a shared object
    file.extend(62_u16.to_le_bytes()); // x86-64
    file.extend(1_u32.to_le_bytes());
    for word in [0, 0, place(&contents)] {
        file.extend(u64::to_le_bytes(word));
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64, 0, 0, 64, sections.len() + 2, sections.len() + 1] {
        file.extend((half as u16).to_le_bytes());
    }
    file.extend(contents);
    file.extend(table);
    file
}

/// A library that defines these symbols, each at the start of its constants, and has these constants.
fn library(symbols: &[&str], constants: &[u8]) -> Vec<u8> {
    const HEADER: u64 = 64;
    let mut strings = b"\0".to_vec();
    let mut table = vec![0; 24];
    let names: usize = symbols.iter().map(|it| it.len() + 1).sum();
    let address = 0x1000 + HEADER + 1 + names as u64 + 24 * (symbols.len() as u64 + 1);
    for symbol in symbols {
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([0x11, 0, 3, 0]); // a global object of section 3
        table.extend(address.to_le_bytes());
        table.extend(8_u64.to_le_bytes());
        strings.extend(symbol.as_bytes());
        strings.push(0);
    }
    elf(&[
        (".dynstr", 3, strings),
        (".dynsym", 11, table),
        (".rodata", 1, constants.to_vec()),
    ])
}

fn found(path: &str, bytes: &[u8]) -> Option<[String; 3]> {
    let mut file = NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("room");
    let elf = Elf::open(file.path(), &mut { u64::MAX })?;
    let it = inspect(path, &elf)?;
    Some([it.runtime, it.version, it.allocator])
}

#[test]
fn runtimes_and_their_versions_are_read_from_symbols_and_constants() {
    let python = |version: u64| {
        let mut bytes = b"xdebugpy".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes
    };
    let old_python = 0x030b_07f0_u64.to_le_bytes();
    for (path, symbols, constants, runtime, version) in [
        (
            "/opt/node",
            &["node_module_register"][..],
            &b"..https://nodejs.org/download/release/v26.10.0/node-v26.10.0.tar.gz\0"[..],
            "Node.js",
            "26.10.0",
        ),
        (
            "/usr/lib/libnode.so.108",
            &["node_module_register"],
            b"\0v1\0v18.20.4\0",
            "Node.js",
            "18.20.4",
        ),
        (
            "/a/libjvm.so",
            &["JNI_CreateJavaVM"],
            b"OpenJDK 64-Bit Server VM (17.0.15+6) for linux\0",
            "the JVM",
            "17.0.15",
        ),
        (
            "/usr/lib/libruby-3.3.so.3.3",
            &["ruby_version"],
            b"3.3.8\0",
            "Ruby",
            "3.3.8",
        ),
        (
            "/usr/sbin/php-fpm8.4",
            &["zend_startup"],
            b"X-Powered-By: PHP/8.4.11\0",
            "PHP",
            "8.4.11",
        ),
        (
            "/x/beam.smp",
            &["erl_start"],
            b"than the current (Erlang/OTP 29).",
            "Erlang's BEAM",
            "29",
        ),
        (
            "/usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.22/libcoreclr.so",
            &["coreclr_initialize"],
            b"",
            ".NET CoreCLR",
            "8.0.22",
        ),
        (
            "/opt/server/server",
            &["DotNetRuntimeInfo"],
            b"@(#)Version 10.0.1326.50504 @Commit: 4099f839",
            ".NET CoreCLR",
            "10.0.1326.50504",
        ),
        (
            "/home/a/server.exe",
            &["caml_main", "caml_domain_spawn", "caml_memprof_start"],
            b"",
            "OCaml",
            "5",
        ),
        (
            "/home/a/server",
            &["caml_main", "caml_memprof_start"],
            b"",
            "OCaml",
            "4",
        ),
        (
            "/usr/lib/libpypy3.11-c.so",
            &["pypy_execute_source"],
            b"[PyPy 8.0.1 with GCC",
            "PyPy",
            "8.0.1",
        ),
        (
            "/usr/bin/python3.11",
            &["PyMem_SetAllocator", "Py_Version"],
            &old_python,
            "CPython",
            "3.11.7",
        ),
        (
            "/usr/bin/python3.15",
            &["PyMem_SetAllocator", "_PyRuntime"],
            &python(0x030f_02f0),
            "CPython",
            "3.15.2",
        ),
        (
            "/usr/bin/python3.14t",
            &[
                "_Py_MergeZeroLocalRefcount",
                "PyMem_SetAllocator",
                "_PyRuntime",
            ],
            &python(0x030e_0af0),
            "free-threaded CPython",
            "3.14.10",
        ),
        (
            "/usr/bin/python3.8",
            &["PyMem_SetAllocator"],
            b"",
            "CPython",
            "3.8",
        ),
        (
            "/usr/bin/perl",
            &["perl_construct"],
            b"a\0v5.36.0\0",
            "Perl",
            "5.36.0",
        ),
        (
            "/usr/lib/libjulia.so.1",
            &["jl_gc_managed_malloc"],
            b"",
            "Julia",
            "",
        ),
        ("/usr/bin/sbcl", &["call_into_lisp"], b"", "SBCL", ""),
        (
            "/usr/bin/pandoc",
            &["hs_init_ghc"],
            b"",
            "GHC's runtime",
            "",
        ),
        (
            "/usr/bin/shellcheck",
            &["main"],
            b"\0Warning: Ignoring GHCRTS variable as RTS options are disabled.\0",
            "GHC's runtime",
            "",
        ),
        ("/usr/bin/racket", &["Sscheme_init"], b"", "Chez Scheme", ""),
        (
            "/usr/lib/libgphobos.so.3",
            &["thread_scanAllType"],
            b"",
            "D",
            "",
        ),
        // The number is another one in each program.
        ("/a/app", &["addHeapLink__system_u4574"], b"", "Nim", ""),
        (
            "/a/server",
            &["heap.SmpAllocator.alloc"],
            b"",
            "Zig's smp_allocator",
            "",
        ),
        (
            "/usr/lib/libguile-3.0.so.1",
            &["scm_boot_guile"],
            b"",
            "Guile",
            "3.0",
        ),
    ] {
        let expected = [runtime, version, ""].map(str::to_owned);
        assert_eq!(
            found(path, &library(symbols, constants)),
            Some(expected),
            "{path}"
        );
    }
    assert_eq!(
        found("/usr/lib/libm.so.6", &library(&["sin"], b"node-v1")),
        None
    );
}

#[test]
fn allocators_are_found_by_symbols_or_where_those_are_stripped_by_their_messages() {
    for (symbols, constants, allocator) in [
        (&["_rjem_mallctl"][..], &b""[..], "jemalloc"),
        (&["duckdb_je_mallctl"], b"", "jemalloc"),
        (&[], b"x\0<jemalloc>: Error in munmap(): %s\n\0", "jemalloc"),
        (
            &["mi_malloc_aligned", "je_arrow_mallctl"],
            b"",
            "jemalloc and mimalloc",
        ),
        (&["tc_malloc"], b"", "tcmalloc"),
        (&["TCMallocInternalMalloc"], b"", "tcmalloc"),
        (
            &[],
            b"MALLOC:   %12u (%7.1f MiB) Bytes in use by application\n\0",
            "tcmalloc",
        ),
        (&[], b"PartitionAlloc.Partitions.Layout\0", "PartitionAlloc"),
    ] {
        let expected = ["", "", allocator].map(str::to_owned);
        assert_eq!(
            found("/a/b.so", &library(symbols, constants)),
            Some(expected)
        );
    }
    // CPython with the GIL has one, and does not use it.
    let python = library(
        &["PyMem_SetAllocator", "_Py_mi_malloc_aligned"],
        b"mimalloc: warning: ",
    );
    assert_eq!(
        found("/usr/bin/python3.13", &python),
        Some(["CPython", "3.13", ""].map(str::to_owned))
    );
}

#[test]
fn a_file_is_read_once_and_again_when_it_has_changed() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("library.so");
    let mut left = 1 << 20;
    let runtime = |left: &mut u64| {
        let contents = Contents::of("/usr/lib/library.so", &file, left)?;
        Some(contents.found?.runtime)
    };
    for (symbol, name) in [("ruby_version", "Ruby"), ("perl_construct", "Perl")] {
        std::fs::write(&file, library(&[symbol], b"")).expect("room");
        assert_eq!(runtime(&mut left).as_deref(), Some(name));
        assert_eq!(runtime(&mut 0).as_deref(), Some(name), "it is known");
        std::fs::remove_file(&file).expect("it is there");
        assert_eq!(runtime(&mut left), None);
    }
}

#[test]
fn a_library_that_only_uses_an_allocator_has_none() {
    let mut bytes = library(&["mi_malloc_aligned"], b"");
    // The symbol's section: none.
    let at = bytes
        .windows(4)
        .position(|it| it == [0x11, 0, 3, 0])
        .expect("the symbol");
    bytes[at + 2] = 0;
    assert_eq!(found("/a/b.so", &bytes), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever a file claims of itself, reading it ends, and takes no more memory than the file has bytes.
    #[test]
    fn any_file_is_read_or_refused(
        changes in proptest::collection::vec((any::<u32>(), any::<u8>()), 0..40),
        length in 0_usize..4000,
    ) {
        let mut bytes = library(
            &["PyMem_SetAllocator", "_PyRuntime", "ruby_version", "caml_main", "_rjem_mallctl"],
            b"xdebugpy\0\0\0\0\0\0\0\0\0v3.4.5\0 node-v26.1.2 64-Bit Server VM (",
        );
        for (place, value) in changes {
            let place = place as usize % bytes.len();
            bytes[place] = value;
        }
        bytes.truncate(length);
        let _ = found("/a/node", &bytes);
    }
}
