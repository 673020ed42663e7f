# A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each.
sessions <- new.env()

build_table <- function(x) {
  lapply(seq_len(4000), function(i) x + i)
}

open_session <- function(x) {
  x * 2
}

serve_request <- function(x) {
  x + 1
}

serve <- function(count) {
  x <- numeric(100)
  table <- build_table(x)
  kept <- vector("list", count)
  for (i in seq_len(count)) {
    serve_request(x)
    kept[[i]] <- open_session(x)
  }
  length(table) + length(kept)
}

cat(serve(as.numeric(commandArgs(TRUE)[1])), "\n")
