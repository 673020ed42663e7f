// Behaviour: a Go program calls C code that allocates, from many goroutines, on Go's own small stacks and signal stacks.
package main

/*
#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) static void *allocated_by_c(size_t size) {
	void *block = malloc(size);
	memset(block, 7, size);
	return block;
}

__attribute__((noinline)) static int freed_by_c(unsigned char *block, size_t size) {
	int is_whole = 1;
	for (size_t at = 0; at < size; at++) is_whole &= block[at] == 7;
	free(block);
	return is_whole;
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

func main() {
	var whole atomic.Int64
	var group sync.WaitGroup
	for worker := 0; worker < 16; worker++ {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			for turn := 0; turn < 500; turn++ {
				size := C.size_t(1 + (worker*977+turn*131)%9000)
				block := C.allocated_by_c(size)
				if turn%50 == 0 {
					runtime.GC()
				}
				whole.Add(int64(C.freed_by_c((*C.uchar)(unsafe.Pointer(block)), size)))
			}
		}(worker)
	}
	group.Wait()
	text := C.CString("passed through C")
	fmt.Println(C.GoString(text), whole.Load())
	C.free(unsafe.Pointer(text))
	if whole.Load() != 8000 {
		os.Exit(1)
	}
}
