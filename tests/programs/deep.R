# Allocates below 20 functions, each of which calls the next one through do.call, withCallingHandlers and tryCatch, as frameworks do.
step <- paste("function(n, all) tryCatch(withCallingHandlers(do.call(all[[n]], list(n - 1L, all)),",
              "warning = function(w) NULL), error = function(e) stop(e))")
functions <- lapply(1:20, function(i) eval(parse(text = step)))
functions[[1]] <- function(n, all) for (i in 1:400) x <- numeric(5000)
for (round in 1:10) functions[[20]](19L, functions)
cat("done\n")
