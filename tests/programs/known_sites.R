# Allocates known numbers of bytes in functions of known names, and prints the truth as JSON.
#
# A vector of more than 128 bytes is a block of its own, whose size object.size tells. Smaller objects share pages, which are taken
# before the sites run.
options(digits = 15, scipen = 100)
truth <- list()
kept <- list()

small_and_freed <- function(x) {
  -x
}

small_and_kept <- function(x) {
  -x
}

large_and_freed <- function(x) {
  !x
}

large_and_kept <- function(x) {
  c(x, x)
}

fill_pages <- function(count) {
  length(as.pairlist(seq_len(count) + 0.5))
}

site <- function(name, x, count, is_kept) {
  called <- get(name)
  these <- vector("list", count)
  for (at in seq_len(count)) {
    made <- called(x)
    if (is_kept) these[[at]] <- made
  }
  bytes <- as.numeric(object.size(called(x)))
  kept[[name]] <<- these
  truth[[name]] <<- c((count + 1) * bytes, count + 1, if (is_kept) count * bytes else 0, if (is_kept) count else 0)
}

run <- function(times) {
  site("small_and_freed", numeric(25), 20000 * times, FALSE)
  site("small_and_kept", integer(40), 10000 * times, TRUE)
  site("large_and_freed", logical(1500), 2000 * times, FALSE)
  site("large_and_kept", numeric(200), 500 * times, TRUE)
}

invisible(fill_pages(400000))
run(as.numeric(commandArgs(TRUE)[1]))
# What is garbage is freed by a collection.
for (i in 1:3) invisible(gc())
keys <- c("bytes", "allocations", "live_bytes", "live_blocks")
sites <- vapply(names(truth), function(name) {
  sprintf('"%s": {%s}', name, paste(sprintf('"%s": %.0f', keys, truth[[name]]), collapse = ", "))
}, "")
cat("{", paste(sites, collapse = ", "), "}\n", sep = "")
quit(status = 0, runLast = FALSE)
