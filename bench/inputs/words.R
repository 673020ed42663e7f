# Text and collections in R: words counted, sorted, joined and split. No random, no clock.
make_words <- function(turn) {
  paste0("word", ((0:3999) * 7919 + turn) %% 1009)
}

pair <- function(key, value) {
  list(key = key, value = value, text = strrep(paste0(key, value), 12))
}

round_of <- function(turn) {
  words <- make_words(turn)
  counts <- table(words)
  pairs <- Map(pair, words[1:300], words[301:600])
  unique_words <- sort(unique(words))
  total <- sum(vapply(pairs, function(it) nchar(it$text), 0L))
  parts <- strsplit(paste(words, collapse = " "), "1", fixed = TRUE)[[1]]
  total + length(unique_words) + length(parts) + length(counts)
}

rounds <- as.numeric(commandArgs(TRUE)[1])
total <- 0
for (turn in seq_len(rounds)) total <- total + round_of(turn)
cat(total, "\n")
