// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// Op is what is measured.
type Op string

// The operations.
const (
	Send     Op = "send"
	Write    Op = "write"
	WriteImm Op = "writeimm"
	Read     Op = "read"
	FetchAdd Op = "fetchadd"
	CompSwap Op = "cmpswap"
)

// Ops are all operations.
var Ops = []Op{Send, Write, WriteImm, Read, FetchAdd, CompSwap}

// isAtomic says whether the operation is on 8 bytes.
func (o Op) isAtomic() bool { return o == FetchAdd || o == CompSwap }

// received says whether the peer posts a receive for each.
func (o Op) received() bool { return o == Send || o == WriteImm }

// oneSided says whether an operation's own completion ends it, so that the peer
// only waits.
func (o Op) oneSided() bool { return o == Read || o.isAtomic() }

// Test is what both ends do. All fields must be set.
type Test struct {
	Op         Op
	Transport  ibverbs.QPType // RC, UC or UD
	Bandwidth  bool           // not latency
	Sizes      []int          // bytes of a message, one after the other
	Both       bool           // both ends send (bandwidth)
	QPs        int            // queue pairs (bandwidth)
	Iterations int            // messages of each size on each queue pair; with Duration: Endless
	Duration   time.Duration  // how long; 0: until all messages are there
	Depth      int            // messages under way (bandwidth)
	List       int            // requests in each call (bandwidth)
	Moderation int            // requests for each completion (bandwidth)
	Receives   int            // posted ahead
	Timeout    time.Duration  // after which RC repeats a packet without an answer; 0: ibverbs' default
	Inline     int            // messages up to so many bytes are sent inline
	Events     bool           // sleep until there are completions; otherwise spin
	Netpoll    bool           // with Events: on Go's netpoller, not in C
}

// Endless is the number of messages of a test with a duration.
const Endless = math.MaxInt32

// Check says what cannot be done.
func (t *Test) Check() error {
	largest := slices.Max(t.Sizes)
	switch {
	case t.Transport == ibverbs.QPTypeUD && t.Op != Send:
		return fmt.Errorf("UD does not support %s", t.Op)
	case t.Transport == ibverbs.QPTypeUC && t.Op.oneSided():
		return fmt.Errorf("UC does not support %s", t.Op)
	case t.Op.isAtomic() && (largest != 8 || slices.Min(t.Sizes) != 8):
		return fmt.Errorf("%s always uses 8 bytes", t.Op)
	case t.Events && t.Op == Write && !t.Bandwidth:
		return fmt.Errorf("the peer of a write has no event to wait for")
	case t.Depth%t.List != 0 || t.Moderation%t.List != 0 && t.List > 1:
		return fmt.Errorf("a depth of %d and a completion for every %d messages must be multiples of the list length %d", t.Depth, t.Moderation, t.List)
	case !t.Bandwidth && (t.QPs > 1 || t.Both):
		return fmt.Errorf("a latency has one queue pair, and messages of one end at a time")
	case t.Duration > 0 && len(t.Sizes) > 1:
		return fmt.Errorf("a test with a duration has one size")
	case t.Moderation > t.Depth:
		return fmt.Errorf("a completion for every %d messages never comes with %d in flight", t.Moderation, t.Depth)
	}
	return nil
}

// String names the test.
func (t *Test) String() string {
	text := fmt.Sprintf("%s %s %s", transportName(t.Transport), t.Op, map[bool]string{false: "latency", true: "bandwidth"}[t.Bandwidth])
	if t.Both {
		text += " both ways"
	}
	if t.QPs > 1 {
		text += fmt.Sprintf(" on %d queue pairs", t.QPs)
	}
	return text
}

// Name returns the test's as a word, after perftest's programs.
func (t *Test) Name() string { return testName(t.Op, t.Bandwidth) }

func testName(op Op, bandwidth bool) string {
	return string(op) + map[bool]string{false: "_lat", true: "_bw"}[bandwidth]
}

// Named returns the operation of a test's name, and whether it is of bandwidth.
func Named(name string) (op Op, bandwidth, ok bool) {
	for _, op := range Ops {
		for _, bandwidth := range []bool{false, true} {
			if testName(op, bandwidth) == name {
				return op, bandwidth, true
			}
		}
	}
	return "", false, false
}

func transportName(t ibverbs.QPType) string { return strings.TrimPrefix(t.String(), "IBV_QPT_") }
