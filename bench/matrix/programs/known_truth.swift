// Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
import Glibc

let rounds = 100_000
let cached = 2_000
// An array's header.
let header = 32

@inline(never) func churnSmall() -> [UInt8] {
    return [UInt8](repeating: 1, count: 100)
}

@inline(never) func churnLarge() -> [UInt8] {
    return [UInt8](repeating: 2, count: 5000)
}

final class Cache {
    var slots = [[UInt8]](repeating: [], count: cached)

    @inline(never) func fill(at index: Int) {
        slots[index] = [UInt8](repeating: 3, count: 900)
    }
}

final class Sessions {
    var kept: [[UInt8]] = []

    init() { kept.reserveCapacity(rounds) }

    @inline(never) func leak() {
        kept.append([UInt8](repeating: 4, count: 1000))
    }
}

if CommandLine.arguments.count > 1 {
    print("ready")
    fflush(nil)
    _ = getchar()
}
let cache = Cache()
let sessions = Sessions()
var sum = 0
for i in 0..<rounds {
    for _ in 0..<10 { sum += churnSmall().count }
    if i % 20 == 0 { sum += churnLarge().count }
    cache.fill(at: i % cached)
    sessions.leak()
    // It takes some seconds to tell a leak from a cache that fills.
    if i % 100 == 0 { usleep(3000) }
}

func site(_ name: String, _ size: Int, _ count: Int, _ live: Int, _ line: Int) -> String {
    let bytes = (header + size) * count
    return "\"known_truth.\(name)\": {\"bytes\": \(bytes), \"live_bytes\": \((header + size) * live), \"line\": \(line)}"
}
let sites = [
    site("churnSmall()", 100, 10 * rounds, 0, 10),
    site("churnLarge()", 5000, rounds / 20, 0, 14),
    site("Cache.fill(at:)", 900, rounds, cached, 21),
    site("Sessions.leak()", 1000, rounds, rounds, 31),
]
print("{\"sites\": {\(sites.joined(separator: ", "))}, \"leak\": \"known_truth.Sessions.leak()\", \"cache\": \"known_truth.Cache.fill(at:)\"}")
fflush(nil)
// What is kept is alive at the end.
_exit(sum > 0 ? 7 : 1)
