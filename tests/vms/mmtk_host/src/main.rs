//! A virtual machine on MMTk that hosts the hook ABI. Runs GCBench, and prints on standard error what is exactly known.
//!
//! usage: mmtk-host PLAN DEPTH ROUNDS [THREADS]
//!
//! PLAN is GenCopy or SemiSpace. Each thread keeps a tree of DEPTH, and in each round makes one bottom up, which it
//! keeps for eight rounds, one top down, short texts, and an array of 64 KiB.

mod abi;
mod hooks;
mod machine;
mod object;
mod thread;

use std::sync::atomic::Ordering;

use mmtk::util::ObjectReference;
use mmtk::vm::slot::Slot;

use object::Kind;
use thread::Thread;

fn new_node(thread: &mut Thread) -> ObjectReference {
    thread.new_object(Kind::Node, 2, 0)
}

/// A tree whose leaves are made first.
fn bottom_up(thread: &mut Thread, depth: u32) -> ObjectReference {
    if depth == 0 {
        return new_node(thread);
    }
    let left = bottom_up(thread, depth - 1);
    thread.push(left);
    let right = bottom_up(thread, depth - 1);
    thread.push(right);
    let node = new_node(thread);
    let right = thread.pop();
    let left = thread.pop();
    thread.store(node, 0, left);
    thread.store(node, 1, right);
    node
}

/// Gives the node that was pushed last its children: old ones get to point to young ones.
fn top_down(thread: &mut Thread, depth: u32) {
    if depth == 0 {
        return;
    }
    for index in 0..2 {
        let child = new_node(thread);
        let parent = thread.peek(0);
        thread.store(parent, index, child);
        thread.push(child);
        top_down(thread, depth - 1);
        thread.pop();
    }
}

fn texts(thread: &mut Thread, count: usize) {
    for at in 0..count {
        thread.new_object(Kind::Text, 0, 16 + at % 200);
    }
}

/// Nodes of a tree whose leaves point to themselves.
fn count(tree: ObjectReference) -> u64 {
    let below = (0..2).filter_map(|index| object::slot(tree, index).load());
    1 + below.filter(|&child| child != tree).map(count).sum::<u64>()
}

const KEPT: usize = 8;

fn gcbench(thread: &mut Thread, depth: u32, rounds: u32) {
    let long_lived = bottom_up(thread, depth);
    thread.push(long_lived);
    // Some trees live for a while, and die old.
    for _ in 0..KEPT {
        thread.push(long_lived);
    }
    for round in 0..rounds {
        let tree = bottom_up(thread, depth);
        thread.replace(round as usize % KEPT, tree);
        let root = new_node(thread);
        thread.push(root);
        top_down(thread, depth);
        thread.pop();
        texts(thread, 1000);
        let array = thread.new_object(Kind::Array, 8192, 0);
        thread.push(array);
        let node = new_node(thread);
        let array = thread.peek(0);
        thread.store(array, 7, node);
        thread.pop();
    }
    for _ in 0..KEPT {
        thread.pop();
    }
    let long_lived = thread.pop();
    assert_eq!(count(long_lived), (1 << (depth + 1)) - 1);
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, plan, depth, rounds, rest @ ..] = &arguments[..] else {
        eprintln!("usage: mmtk-host PLAN DEPTH ROUNDS [THREADS]");
        std::process::exit(2);
    };
    let number = |text: &String| -> u32 { text.parse().expect("a number") };
    let (depth, rounds) = (number(depth), number(rounds));
    let threads = rest.first().map_or(1, number);
    hooks::start();
    machine::start(&[
        ("plan", plan),
        // With more, chance decides which of them fills which page, and so when the heap is full.
        ("threads", "1"),
        ("gc_trigger", "FixedHeapSize:25165824"),
        ("nursery", "Fixed:4194304"),
    ]);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| Thread::run(|thread| gcbench(thread, depth, rounds)));
        }
    });
    for (kind, name) in [
        (Kind::Node, "Node"),
        (Kind::Text, "Text"),
        (Kind::Array, "Array"),
    ] {
        let (objects, bytes) = &thread::ALLOCATED[kind as usize];
        eprintln!(
            "type {name} {} {} {}",
            objects.load(Ordering::Relaxed),
            bytes.load(Ordering::Relaxed),
            object::PROMOTED[kind as usize].load(Ordering::Relaxed)
        );
    }
    eprintln!(
        "collections {} {}",
        machine::MINOR_COLLECTIONS.load(Ordering::Relaxed),
        machine::MAJOR_COLLECTIONS.load(Ordering::Relaxed)
    );
}
