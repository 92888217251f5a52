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

// Op is the operation to measure.
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

// isAtomic reports whether the operation is atomic, on 8 bytes.
func (o Op) isAtomic() bool { return o == FetchAdd || o == CompSwap }

// received reports whether the peer must post a receive for the operation.
func (o Op) received() bool { return o == Send || o == WriteImm }

// oneSided reports whether the operation ends with its own completion, so that
// the peer only waits.
func (o Op) oneSided() bool { return o == Read || o.isAtomic() }

// Test describes a test. Both ends must be given the same test. All fields must
// be set.
type Test struct {
	Op         Op
	Transport  ibverbs.QPType // type of the queue pairs: RC, UC or UD
	Bandwidth  bool           // whether to measure bandwidth rather than latency
	Sizes      []int          // numbers of bytes in a message, measured one after the other
	Both       bool           // whether both ends send (bandwidth)
	QPs        int            // number of queue pairs (bandwidth)
	Iterations int            // number of messages of each size on each queue pair; Endless if Duration is set
	Duration   time.Duration  // duration; 0 means until all messages are transferred
	Depth      int            // number of messages in flight (bandwidth)
	List       int            // number of requests that each call of ibv_post_send posts (bandwidth)
	Moderation int            // number of requests for each completion (bandwidth)
	Receives   int            // number of receives posted in advance
	Timeout    time.Duration  // time after which RC resends a packet that is not acknowledged; 0 means the default of ibverbs
	Inline     int            // maximum number of bytes of a message that is sent inline
	Fit        Fit            // what is reduced to what this end's device has
	Events     bool           // whether to sleep until there are completions, rather than spin
	Netpoll    bool           // whether to sleep on Go's netpoller rather than in C, with Events
}

// Fit says which sizes of a Test are reduced to what this end's device has.
// Otherwise, the test fails on a device that has less.
type Fit struct{ Receives, Inline bool }

// Endless is the number of messages in a test with a duration.
const Endless = math.MaxInt32

// Check returns an error if the test is impossible.
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
		return fmt.Errorf("a write causes no event at the peer, so a test of writes cannot wait for events")
	case t.Depth%t.List != 0 || t.Moderation%t.List != 0 && t.List > 1:
		return fmt.Errorf("the depth is %d and there is a completion for every %d messages; both numbers must be multiples of the list length %d", t.Depth, t.Moderation, t.List)
	case !t.Bandwidth && (t.QPs > 1 || t.Both):
		return fmt.Errorf("a test of latency has one queue pair, and only one end sends at a time")
	case t.Duration > 0 && len(t.Sizes) > 1:
		return fmt.Errorf("a test with a duration can have only one size")
	case t.Moderation > t.Depth:
		return fmt.Errorf("there is a completion for every %d messages, but only %d are in flight", t.Moderation, t.Depth)
	}
	return nil
}

// String returns a description of the test.
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

// Name returns the test's name, after perftest's programs.
func (t *Test) Name() string { return testName(t.Op, t.Bandwidth) }

func testName(op Op, bandwidth bool) string {
	return string(op) + map[bool]string{false: "_lat", true: "_bw"}[bandwidth]
}

// Named returns the operation of the test with a name, and whether the test
// measures bandwidth.
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
