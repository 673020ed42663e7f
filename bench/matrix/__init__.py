"""The matrix of runtimes and their versions: one program whose truth is known, a file per runtime."""
