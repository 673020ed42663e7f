// Allocates before main begins and right before the program ends, in the way that the argument says.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
)

var early, late [20000][]byte
var begun = atStart()
var signals = make(chan os.Signal, 1)

//go:noinline
func atStart() int {
	for i := range early {
		early[i] = make([]byte, 208)
	}
	return len(early)
}

//go:noinline
func atEnd() {
	for i := range late {
		late[i] = make([]byte, 1024)
	}
}

// The main thread calls exec, which is the one that is traced.
func init() {
	runtime.LockOSThread()
}

func main() {
	fmt.Println("begun with", begun, os.Args[1:])
	how := os.Args[1]
	switch how {
	case "child":
		child := exec.Command(os.Args[0], "signals")
		child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
		fmt.Println(child.Run())
	case "signal", "signals", "exec":
		signal.Notify(signals, syscall.SIGTERM)
		fmt.Println("ready")
		fmt.Println(<-signals)
	}
	atEnd()
	switch how {
	case "signals", "exec":
		// A collection tells the runtime's profile what was allocated.
		runtime.GC()
		fmt.Println(<-signals)
		if how == "exec" {
			err := syscall.Exec(os.Args[0], []string{os.Args[0], "exit"}, os.Environ())
			fmt.Println(err)
		}
	case "kill":
		syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	case "panic":
		panic("as asked for")
	case "exit":
		os.Exit(7)
	}
}
