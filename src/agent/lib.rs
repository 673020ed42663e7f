//! The slow path on the program's threads: guard, capture, account, publish.
