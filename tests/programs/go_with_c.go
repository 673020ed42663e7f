// Allocates by malloc, in C, for each line of its input.
package main

// #include <stdlib.h>
import "C"

import (
	"bufio"
	"fmt"
	"os"
)

func main() {
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		for i := 0; i < 1000; i++ {
			C.free(C.malloc(1000))
		}
		fmt.Println("done")
	}
}
