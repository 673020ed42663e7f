//! Language runtimes and their bridges, in programs that others use.

#[path = "../support/mod.rs"]
mod support;

mod beam;
mod d;
mod dotnet;
mod dotnet_attach;
mod go;
mod go_memory;
mod guile;
mod jvm;
mod jvm_attach;
mod jvm_heap;
mod jvm_idle;
mod jvm_memory;
mod jvm_sampling;
mod jvm_stacks;
mod jvm_start;
mod jvm_types;
mod jvm_versions;
mod languages;
mod libgc;
mod lua;
mod luajit;
mod mono;
mod node;
mod ocaml;
mod perl;
mod php;
mod pypy;
mod python;
mod python_types;
mod r;
mod r_deep;
mod real_programs;
mod ruby;
mod ruby_objects;
mod same_names;
mod second_opinion;
mod tcl;
mod v8_inlined;
