// Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
//
// It calls libc where Zig's own interfaces change from version to version.
const std = @import("std");
const allocator = std.heap.c_allocator;

extern fn printf(format: [*:0]const u8, ...) c_int;
extern fn fflush(stream: ?*anyopaque) c_int;
extern fn getchar() c_int;
extern fn usleep(microseconds: c_uint) c_int;
extern fn _exit(status: c_int) noreturn;

const rounds = 100_000;
const cached = 2_000;

var cache: [cached][]u8 = undefined;
var leaked: [rounds][]u8 = undefined;

noinline fn churnSmall() []u8 {
    return allocator.alloc(u8, 100) catch _exit(1);
}

noinline fn churnLarge() []u8 {
    return allocator.alloc(u8, 5000) catch _exit(1);
}

noinline fn fillCache() []u8 {
    return allocator.alloc(u8, 900) catch _exit(1);
}

noinline fn leakSession() []u8 {
    return allocator.alloc(u8, 1000) catch _exit(1);
}

pub export fn main(arguments: c_int, _: [*]const ?[*:0]const u8) c_int {
    if (arguments > 1) {
        _ = printf("ready\n");
        _ = fflush(null);
        _ = getchar();
    }
    for (0..rounds) |i| {
        for (0..10) |_| {
            const small = churnSmall();
            std.mem.doNotOptimizeAway(small.ptr);
            allocator.free(small);
        }
        if (i % 20 == 0) {
            const large = churnLarge();
            std.mem.doNotOptimizeAway(large.ptr);
            allocator.free(large);
        }
        if (i >= cached) allocator.free(cache[i % cached]);
        cache[i % cached] = fillCache();
        leaked[i] = leakSession();
        // It takes some seconds to tell a leak from a cache that fills.
        if (i % 100 == 0) _ = usleep(3000);
    }
    const format = "{\"sites\": {\"churnSmall\": {\"bytes\": %d, \"live_bytes\": 0, \"line\": 20}, " ++
        "\"churnLarge\": {\"bytes\": %d, \"live_bytes\": 0, \"line\": 24}, " ++
        "\"fillCache\": {\"bytes\": %d, \"live_bytes\": %d, \"line\": 28}, " ++
        "\"leakSession\": {\"bytes\": %d, \"live_bytes\": %d, \"line\": 32}}, \"leak\": \"leakSession\", \"cache\": \"fillCache\"}\n";
    const each = [_]c_int{ 100 * 10 * rounds, 5000 * rounds / 20, 900 * rounds, 900 * cached, 1000 * rounds, 1000 * rounds };
    _ = printf(format, each[0], each[1], each[2], each[3], each[4], each[5]);
    _ = fflush(null);
    // What is kept is alive at the end.
    _exit(7);
}
