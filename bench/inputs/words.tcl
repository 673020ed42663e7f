# Text and collections in Tcl: words counted, sorted, joined and split. No random, no clock.
proc make_words {turn} {
    set words {}
    for {set i 0} {$i < 4000} {incr i} {
        lappend words "word[expr {($i * 7919 + $turn) % 1009}]"
    }
    return $words
}

proc pair {key value} {
    dict create key $key value $value text [string repeat $key$value 12]
}

proc round_of {turn} {
    set words [make_words $turn]
    set pairs {}
    foreach word $words {
        incr ::counts($word)
    }
    for {set i 0} {$i < 300} {incr i} {
        lappend pairs [pair [lindex $words $i] [lindex $words [expr {300 + $i}]]]
    }
    set sorted [lsort -unique $words]
    set parts [split [join $words " "] 1]
    set total [expr {[llength $sorted] + [llength $parts]}]
    foreach pair $pairs {
        incr total [string length [dict get $pair text]]
    }
    return $total
}

set total 0
for {set turn 0} {$turn < [lindex $argv 0]} {incr turn} {
    incr total [round_of $turn]
}
puts "[array size counts] $total"
