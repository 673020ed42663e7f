;; Allocates known numbers of bytes in procedures of known names, and prints the truth as JSON.
;; A vector of n has n + 1 words; a byte vector has 4 words before its bytes, and one block with them.
(define kept '())
(define last #f)

(define (small_and_freed n)
  (set! last (make-vector n 0)))

(define (small_and_kept n)
  (set! kept (cons #f kept))
  (set-car! kept (make-vector n 0)))

(define (large_and_freed n)
  (set! last (make-vector n 0)))

(define (large_and_kept n)
  (set! last (make-vector n 0))
  (vector-set! last 0 kept)
  (set! kept last))

(define (times count site n)
  (let loop ((i 0))
    (when (< i count)
      (site n)
      (loop (+ i 1)))))

(define (truth name words count is-kept beside)
  (let ((bytes (+ (* 8 words count) (* beside count)))
        (blocks (if (> beside 0) (* 2 count) count)))
    (format #f "\"~a\":{\"bytes\":~a,\"allocations\":~a,\"live_bytes\":~a,\"live_blocks\":~a}"
            name bytes blocks (if is-kept bytes 0) (if is-kept blocks 0))))

(define (run all)
  (times (* 20000 all) small_and_freed 29)
  (times (* 10000 all) small_and_kept 19)
  (times (* 1000 all) large_and_freed 1999)
  (times (* 200 all) large_and_kept 1999)
  (set! last #f)
  (gc)
  (gc)
  (format #t "{~a,~a,~a,~a}~%"
          (truth "small_and_freed" 30 (* 20000 all) #f 0)
          (truth "small_and_kept" 20 (* 10000 all) #t 16)
          (truth "large_and_freed" 2000 (* 1000 all) #f 0)
          (truth "large_and_kept" 2000 (* 200 all) #t 0)))

(run (string->number (cadr (command-line))))
(exit 0)
