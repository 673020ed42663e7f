"""Amounts of bytes."""

KIB = 1024


def text(amount: int) -> str:
    """`512 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount} {unit}"
        amount //= 1024
    return f"{amount} TiB"
