# A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each.
set sessions {}

proc build_table {size} {
    for {set i 0} {$i < 4000} {incr i} {
        lappend ::table [string repeat t $size]
    }
}

proc open_session {size} {
    string repeat s $size
}

proc serve_request {size} {
    string repeat r $size
}

proc serve {count} {
    for {set i 0} {$i < $count} {incr i} {
        serve_request 800
        lappend ::sessions [open_session 800]
    }
}

build_table 800
serve [lindex $argv 0]
puts [expr {[llength $table] + [llength $sessions]}]
