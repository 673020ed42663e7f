// Fills a heap, drops nearly all of it, and collects. The runtime keeps the memory.
package main

import (
	"fmt"
	"runtime"
	"time"
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
	time.Sleep(time.Second)
	fmt.Println(len(kept))
}
