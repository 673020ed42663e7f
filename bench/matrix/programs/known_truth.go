// Two churn sites, a bounded cache and a leak, whose bytes are known. The protocol is in bench/matrix/version.py.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"time"
)

const (
	rounds      = 200_000
	cached      = 2_000
	collections = 20
)

// A size of Go's allocator, as all sizes here are. The resident set varies by some MB between collections: a leak of no more than that
// is not confirmed by it.
type session struct {
	number, user, road, data, more [4]uint64
}

type site struct {
	Bytes int `json:"bytes"`
	Live  int `json:"live_bytes"`
	Line  int `json:"line"`
}

var (
	sink   []byte
	cache  [cached][]byte
	leaked []*session
)

//go:noinline
func churnSmall() []byte {
	return make([]byte, 160)
}

//go:noinline
func churnLarge() []byte {
	return make([]byte, 5376)
}

//go:noinline
func fillCache() []byte {
	return make([]byte, 320)
}

//go:noinline
func leakSession() *session {
	return &session{}
}

func main() {
	// How long a reading from outside may take to come: once a second by `attach`, which does not see the end.
	reading := 50 * time.Millisecond
	if len(os.Args) > 1 {
		fmt.Println("ready")
		bufio.NewReader(os.Stdin).ReadString('\n')
		// Less than eight readings are too few to call a leak what nobody frees.
		reading = 700 * time.Millisecond
	}
	leaked = make([]*session, 0, rounds)
	for i := 0; i < rounds; i++ {
		sink = churnSmall()
		if i%20 == 0 {
			sink = churnLarge()
		}
		cache[i%cached] = fillCache()
		leaked = append(leaked, leakSession())
		if i%(rounds/collections) == 0 {
			runtime.GC()
			time.Sleep(reading)
		}
	}
	sink = nil
	// Go's profile tells of the collection before the last.
	runtime.GC()
	runtime.GC()
	time.Sleep(3 * reading)
	if os.Getenv("OWN_LIVE_BYTES") != "" {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		fmt.Printf("{\"own_live_bytes\": %d}\n", stats.HeapAlloc)
		os.Exit(7)
	}
	truth := map[string]any{
		"sites": map[string]site{
			"churnSmall":  {160 * rounds, 0, 39},
			"churnLarge":  {5376 * rounds / 20, 0, 44},
			"fillCache":   {320 * rounds, 320 * cached, 49},
			"leakSession": {160 * rounds, 160 * rounds, 54},
		},
		"leak":  "leakSession",
		"cache": "fillCache",
	}
	json.NewEncoder(os.Stdout).Encode(truth)
	runtime.KeepAlive(leaked)
	os.Exit(7)
}
