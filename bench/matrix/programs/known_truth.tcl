# A program whose truth is known: two procedures allocate and drop, one fills a bounded cache, one leaks.
#
# A string of n bytes is a block of n + 1 bytes, and from Tcl 9 on another one of 32 bytes. Values themselves come from a pool of Tcl's, which belongs to no procedure.
if {[lindex $argv 0] eq "wait"} {
    puts ready
    flush stdout
    gets stdin
}
set size(small_churn) 319
set size(large_churn) 17999
set size(fill_cache) 3999
set size(open_session) 3999

proc small_churn {} {
    return [string repeat a 319]
}
proc large_churn {} {
    return [string repeat b 17999]
}
proc fill_cache {} {
    return [string repeat c 3999]
}
proc open_session {} {
    return [string repeat d 3999]
}

proc serve {rounds} {
    for {set round 0} {$round < $rounds} {incr round} {
        for {set i 0} {$i < 40} {incr i} {
            small_churn
        }
        for {set i 0} {$i < 2} {incr i} {
            large_churn
        }
        lset ::cache [expr {$round % 200}] [fill_cache]
        lset ::sessions $round [open_session]
        # It takes some seconds to tell a leak from a cache that fills.
        if {$round % 20 == 0} {
            after 12
        }
    }
}

set rounds 4000
set cache [lrepeat 200 {}]
set sessions [lrepeat $rounds {}]
serve $rounds

set other [expr {[info tclversion] >= 9 ? 32 : 0}]
set sites {}
foreach {name count live line} [list small_churn [expr {40 * $rounds}] 0 15 large_churn [expr {2 * $rounds}] 0 18 \
        fill_cache $rounds 200 21 open_session $rounds $rounds 24] {
    set bytes [expr {$size($name) + 1 + $other}]
    lappend sites "\"$name\": {\"bytes\": [expr {$count * $bytes}], \"live_bytes\": [expr {$live * $bytes}], \"line\": $line}"
}
puts "{\"sites\": {[join $sites {, }]}, \"leak\": \"open_session\", \"cache\": \"fill_cache\"}"
exit 7
