;; Allocates known numbers of bytes in loops that each call one function of libguile, and prints the truth as JSON.
;; A vector of n has n + 1 words; so has what a bytevector of 8 n bytes holds beside its header.

(define kept '())

(define (vectors-kept times)
  (let loop ((i 0))
    (when (< i (* 2000 times))
      (set! kept (cons (make-vector 199 i) kept))
      (loop (+ i 1)))))

(define (vectors-dropped times)
  (let loop ((i 0))
    (when (< i (* 20000 times))
      (make-vector 299 i)
      (loop (+ i 1)))))

(define (site bytes allocations live)
  (format #f "{\"bytes\":~a,\"allocations\":~a,\"live_bytes\":~a,\"live_blocks\":~a}"
          (* bytes allocations) allocations (* bytes live) live))

(let ((times (string->number (cadr (command-line)))))
  (vectors-kept times)
  (vectors-dropped times)
  (gc)
  (gc)
  (format #t "{\"kept\":~a,\"dropped\":~a}~%"
          (site 1600 (* 2000 times) (length kept))
          (site 2400 (* 20000 times) 0)))
