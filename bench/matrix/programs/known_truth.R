# Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
#
# A vector of more than 128 bytes is a block of its own, whose size object.size tells. It is freed by R's next collection.
# Smaller objects share pages, which are taken before the sites run.
ROUNDS <- 100000
CACHED <- 2000

churn_small <- function(x) {
  -x
}

churn_large <- function(x) {
  -x
}

fill_cache <- function(x) {
  -x
}

leak_session <- function(x) {
  -x
}

from <- list(churn_small = numeric(100), churn_large = numeric(625), fill_cache = numeric(113), leak_session = numeric(125))
line <- list(churn_small = 9, churn_large = 13, fill_cache = 17, leak_session = 21)

fill_pages <- function(count) {
  length(as.pairlist(seq_len(count) + 0.5))
}

work <- function() {
  cache <- vector("list", CACHED)
  leaked <- vector("list", ROUNDS)
  small <- from$churn_small
  large <- from$churn_large
  entry <- from$fill_cache
  session <- from$leak_session
  for (i in 0:(ROUNDS - 1)) {
    churn_small(small)
    if (i %% 20 == 0) churn_large(large)
    cache[[i %% CACHED + 1]] <- fill_cache(entry)
    leaked[[i + 1]] <- leak_session(session)
    # Garbage that waits for a collection hides what the leak makes the resident set grow by.
    if (i %% 5000 == 0) gc()
    # It takes some seconds to tell a leak from a cache that fills.
    if (i %% 100 == 0) Sys.sleep(0.006)
  }
  list(cache, leaked)
}

site <- function(name, count, live) {
  bytes <- as.numeric(object.size(from[[name]]))
  sprintf('"%s": {"bytes": %.0f, "live_bytes": %.0f, "line": %d}', name, bytes * count, bytes * live, as.integer(line[[name]]))
}

if ("wait" %in% commandArgs(TRUE)) {
  cat("ready\n")
  answer <- readLines(file("stdin"), 1)
}
invisible(fill_pages(60000))
kept <- work()
# What is garbage is freed by a collection.
for (i in 1:3) invisible(gc())
sites <- c(site("churn_small", ROUNDS, 0), site("churn_large", ROUNDS / 20, 0),
           site("fill_cache", ROUNDS, CACHED), site("leak_session", ROUNDS, ROUNDS))
cat('{"sites": {', paste(sites, collapse = ", "), '}, "leak": "leak_session", "cache": "fill_cache"}\n', sep = "")
quit(status = 7, runLast = FALSE)
