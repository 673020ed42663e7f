//! Promise: what a Go heap keeps is the heap's memory, however little is alive in it.

mod support;

use support::ledger::{accounts, assert_adds_up, ledger};
use support::room::stderr;
use support::{Program, Room, compile, skip};

const SOURCE: &str = "go_garbage.go";

#[test]
fn a_go_heap_keeps_its_memory_after_a_collection() {
    if !compile::can_compile(SOURCE) {
        skip("no Go (Debian: golang-go)");
        return;
    }
    let room = Room::new();
    room.add(&Program::compiled_with(SOURCE, &[]), "program");
    let ran = room.output(&["run", "-q", "-o", "it.allocsample", "--", "./program"]);
    assert!(ran.status.success(), "{}", stderr(&ran));
    let ledger = ledger(&room, "it.allocsample");
    for moment in ["peak", "last"] {
        assert_adds_up(&ledger[moment]);
        let mib = accounts(&ledger[moment]);
        let of = |account: &str| mib.get(account).copied().unwrap_or(0.0);
        // 2,000 blocks of 61,440 bytes, of which 40 stay live, and the runtime's own memory.
        assert!(of("objects") + of("objects_held") > 100.0, "{mib:?}");
        assert!(of("unexplained") < 4.0, "{mib:?}");
        // Before the collection all of them count as live.
        assert!(moment == "peak" || of("objects") < 60.0, "{mib:?}");
    }
}
