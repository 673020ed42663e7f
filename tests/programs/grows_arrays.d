// Arrays that are appended to and reserved, most of them in place, beside how large their blocks are in the end.
module grows_arrays;

import core.memory : GC;
import core.stdc.stdlib : _Exit;
import std.stdio : stdout, writefln;

enum arrays = 40;
enum numbers = 100_000;

__gshared ulong[][arrays] appended, reserved;

pragma(inline, false) void append(ref ulong[] array)
{
    foreach (i; 0 .. numbers)
        array ~= i;
    array[0] = 1;
}

pragma(inline, false) void reserve_more(ref ulong[] array)
{
    foreach (i; 1 .. 11)
        array.reserve(i * numbers / 10);
    array ~= 1;
}

size_t bytes(ulong[][] all)
{
    size_t sum;
    foreach (array; all)
        sum += GC.query(array.ptr).size;
    return sum;
}

void main()
{
    foreach (ref array; appended)
        append(array);
    foreach (ref array; reserved)
        reserve_more(array);
    GC.collect();
    enum site = `"%s": {"live_bytes": %d}`;
    writefln(`{` ~ site ~ `, ` ~ site ~ `}`, "append", bytes(appended), "reserve_more", bytes(reserved));
    stdout.flush();
    // What is kept is alive at the end.
    _Exit(0);
}
