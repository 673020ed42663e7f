// Fills a heap, drops nearly all of it, collects, and waits for the end of its input. The runtime keeps the memory for a while.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
)

var kept [][]byte

func main() {
	for i := 0; i < 2000; i++ {
		block := make([]byte, 60000)
		for j := range block {
			block[j] = 1
		}
		kept = append(kept, block)
	}
	kept = append([][]byte(nil), kept[:40]...)
	runtime.GC()
	runtime.GC()
	fmt.Println(len(kept))
	io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(kept)
}
