# Every kind of code that R runs keeps a vector of 300 kB. An argument is computed by the function that first uses it, so that none of
# them is one.
x <- numeric(37500)
kept <- new.env()

plain <- function() kept$plain <- x + 1
calls <- function() {
  lapply(1, function(i) kept$FUN <- x + i)
  do.call(function(i) kept$anonymous <- x + i, list(1))
  (function(i) kept$immediate <- x + i)(1)
  Reduce(function(a, b) kept$reduced <- x + b, 1:2)
}
again <- function(n) if (n > 0) Recall(n - 1) else kept$recalled <- x + n
area <- function(shape) UseMethod("area")
area.square <- function(shape) kept$area.square <- x + shape$side
setClass("Circle", representation(radius = "numeric"))
setGeneric("edge", function(shape) standardGeneric("edge"))
setMethod("edge", "Circle", function(shape) kept$edge <- x + shape@radius)
Counter <- setRefClass("Counter", fields = list(count = "numeric"), methods = list(
  grow = function() {
    kept$grown <- x + count
  }
))
`%more%` <- function(a, b) kept$operator <- a + b
`size<-` <- function(it, value) {
  kept$replaced <- x + value
  it
}
in_argument <- function(value) value
caught <- function() tryCatch(stop("no"), error = function(e) kept$caught <- x + 1, finally = kept$finally <- x + 2)
cleans <- function() {
  on.exit(kept$on.exit <- x + 3)
  invisible(NULL)
}
outer_one <- function() {
  inner_one <- function() kept$inner <- x + 4
  inner_one()
}
evaluates <- function() eval(quote(kept$evaluated <- x + 5))
interpreted <- function() {
  for (i in 1:2) kept$interpreted <- x + 6
}
deep <- function(n) if (n > 0) deep(n - 1) else kept$deep <- x + 7
builtin <- function() kept$builtin <- rep(x, 2)
of_package <- function() kept$smooth <- stats::filter(x, rep(1, 3))
shared <- list(member = function() kept$member <- x + 8)

shapes <- function() {
  plain()
  calls()
  again(2)
  area(structure(list(side = 2), class = "square"))
  edge(new("Circle", radius = 1))
  counter <- Counter$new(count = 1)
  counter$grow()
  x %more% 1
  it <- 1
  size(it) <- 2
  in_argument(kept$argument <- x + 9)
  caught()
  cleans()
  outer_one()
  evaluates()
  interpreted()
  deep(300)
  builtin()
  of_package()
  shared$member()
}
shapes()
cat(length(ls(kept)), "\n")
quit(status = 3, runLast = FALSE)
