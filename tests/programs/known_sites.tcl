# Allocates known numbers of bytes in procedures of known names, and prints the truth as JSON.
#
# A string of n bytes is a block of n + 1 bytes, and from Tcl 9 on another one of 32 bytes. Values themselves are made before the sites run: Tcl takes them from a pool.
set kept {}
set others [expr {[info tclversion] >= 9 ? 32 : 0}]

proc small_and_freed {n} {
    string repeat a $n
}

proc small_and_kept {n} {
    string repeat b $n
}

namespace eval large {
    proc large_and_freed {n} {
        string repeat c $n
    }
    proc large_and_kept {n} {
        string repeat d $n
    }
}

proc fill_pool {count} {
    set values {}
    for {set i 0} {$i < $count} {incr i} {
        lappend values [expr {$i + 0.5}]
    }
}

proc site {name n count is_kept} {
    set these [lrepeat $count {}]
    for {set i 0} {$i < $count} {incr i} {
        set made [$name $n]
        if {$is_kept} {
            lset these $i $made
        }
    }
    lappend ::kept $these
    set blocks [expr {$::others > 0 ? 2 * $count : $count}]
    set bytes [expr {($n + 1 + $::others) * $count}]
    lappend ::truth "\"$name\": {\"bytes\": $bytes, \"allocations\": $blocks, \"live_bytes\": [expr {$is_kept * $bytes}],\
        \"live_blocks\": [expr {$is_kept * $blocks}]}"
}

proc run {times} {
    site small_and_freed 200 [expr {20000 * $times}] 0
    site small_and_kept 160 [expr {10000 * $times}] 1
    site large::large_and_freed 6000 [expr {2000 * $times}] 0
    site large::large_and_kept 20000 [expr {200 * $times}] 1
}

set times [lindex $argv 0]
fill_pool [expr {40000 * $times}]
run $times
puts "{[join $truth {, }]}"
