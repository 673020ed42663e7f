"""Tables that scripts keep up to date in pages, between two comments."""

import os


def write_between(page, name, lines):
    """Replaces what stands between `<!-- name begin -->` and `<!-- name end -->`, which must be there."""
    begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
    with open(page) as file:
        text = file.read()
    head, first, rest = text.partition(begin)
    _, second, tail = rest.partition(end)
    if not first or not second:
        raise ValueError(f"{page} lacks {begin} or {end}")
    aside = f"{page}.new"
    with open(aside, "w") as file:
        file.write(head + "\n".join([begin, *lines, end]) + tail)
    os.replace(aside, page)
