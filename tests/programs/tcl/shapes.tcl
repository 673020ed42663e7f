# Keeps a string of 300 kB from each kind of code that Tcl runs, and ends with status 3.
set size 300000

proc keep {value} { lappend ::kept $value }

proc plain {size} {
    set unused $size
    keep [string repeat plain1 $size]
    return
}

proc appends {size} {
    set text a
    set other b
    append text [string repeat a $size]
    append other $text $text
    return $other
}

namespace eval outer {
    namespace eval inner {
        proc spaced {size} { keep [string repeat s $size] }
    }
    proc evaluates {size} {
        namespace eval inner [list spaced $size]
    }
}

proc again {depth size} {
    if {$depth > 0} { again [expr {$depth - 1}] $size } else { keep [string repeat d $size] }
}

oo::class create Shape {
    variable area
    constructor {size} { set area [string repeat c $size] }
    method grow {size} { append area [string repeat g $size] }
    method both {size} { my grow $size }
    destructor { keep [string repeat x 300001] }
}
oo::class create Square {
    superclass Shape
    method both {size} { next $size; keep [string repeat q $size] }
}
proc objects {size} {
    set square [Square new $size]
    $square both $size
    $square destroy
    set own [Shape new $size]
    oo::objdefine $own method special {size} { keep [string repeat o $size] }
    $own special $size
}

proc lambdas {size} {
    keep [apply {size {
        string repeat l $size
    }} $size]
}

proc generator {size} {
    while 1 {
        yield [string repeat y $size]
    }
}
proc consumes {size} {
    coroutine next_one generator $size
    keep [next_one]
}

proc up {size} { uplevel 1 [list keep_here $size] }
proc keep_here {size} { keep [string repeat u $size] }
proc calls_up {size} { up $size }

proc sorts {size} {
    lsort -command [list compare $size] {b a}
}
proc compare {size a b} {
    keep [string repeat k $size]
    string compare $a $b
}

proc traced {size} {
    set variable 1
    trace add variable variable write [list on_write $size]
    set variable 2
}
proc on_write {size args} { keep [string repeat w $size] }

proc later {size} {
    keep [string repeat e $size]
    set ::done 1
}

proc renamed {size} { keep [string repeat n $size] }
rename renamed renewed

interp create child
child eval {
    proc in_child {size} { lappend ::kept [string repeat h $size] }
}
child alias to_parent aliased
proc aliased {size} { keep [string repeat p $size] }
proc children {size} {
    child eval [list in_child $size]
    child eval [list to_parent $size]
}

proc catches {size} {
    try {
        fails $size
    } on error message {
        keep $message
    }
}
proc fails {size} { error [string repeat f $size] }

proc texts {size} {
    eval "keep \[string repeat v $size\]"
    set script {keep [string repeat z $size]}
    if 1 $script
}

plain $size
keep [appends $size]
outer::evaluates $size
again 3 $size
objects $size
lambdas $size
consumes $size
calls_up $size
sorts $size
traced $size
after 0 [list later $size]
vwait done
renewed $size
children $size
catches $size
texts $size
foreach letter {r s} {
    keep [string repeat $letter $size]
}
puts [llength $kept]
exit 3
