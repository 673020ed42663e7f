// Allocates, lets go, collects and changes its sampling rate, as each line of its input says.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// 48 bytes, which is a size class.
type node struct {
	next *node
	data [40]byte
}

var kept *node
var cache [1000][]byte
var passing []byte

// Small enough to be inlined: it is a function of the source all the same.
func newNode(next *node) *node {
	return &node{next: next} // the line of nodes
}

//go:noinline
func keep(count int) {
	for i := 0; i < count; i++ {
		kept = newNode(kept)
	}
}

//go:noinline
func fillCache(count int) {
	for i := 0; i < count; i++ {
		cache[i%len(cache)] = make([]byte, 1024)
	}
}

//go:noinline
func pass(count int) {
	for i := 0; i < count; i++ {
		passing = make([]byte, 208)
	}
	passing = nil
}

func main() {
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		count := 0
		if len(words) > 1 {
			count, _ = strconv.Atoi(words[1])
		}
		switch words[0] {
		case "keep":
			keep(count)
		case "fill":
			fillCache(count)
		case "pass":
			pass(count)
		case "forget":
			kept = nil
		case "collect":
			runtime.GC()
		case "rate":
			runtime.MemProfileRate = count
		}
		fmt.Println(runtime.MemProfileRate)
	}
}
