"""Makes sub-interpreters one after another, in the main thread and in others at once, and lets each allocate and collect."""

import threading

try:
    import _interpreters as interpreters  # 3.13

    run = interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters

    run = interpreters.run_string

CODE = """
import gc

def of_an_interpreter():
    return [bytes(100) for _ in range(2000)]

kept = []
for turn in range(20):
    kept.append(of_an_interpreter())
    gc.collect()
"""


def work():
    for _ in range(3):
        interpreter = interpreters.create()
        run(interpreter, CODE)
        interpreters.destroy(interpreter)


work()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
