;; A server in miniature: a table from the start, requests whose data is dropped, and a session that is kept for each.
(define sessions '())
(define answer #f)

(define (build_table n)
  (let loop ((i 0) (table '()))
    (if (< i 4000)
        (loop (+ i 1) (cons (make-vector n i) table))
        table)))

(define (open_session n)
  (set! sessions (cons #f sessions))
  (set-car! sessions (make-vector n 0)))

(define (serve_request n)
  (set! answer (make-vector n 1)))

(define (serve count)
  (let loop ((i 0))
    (when (< i count)
      (serve_request 100)
      (open_session 100)
      (loop (+ i 1)))))

(define table (build_table 100))
(serve (string->number (cadr (command-line))))
(display (+ (length table) (length sessions)))
(newline)
