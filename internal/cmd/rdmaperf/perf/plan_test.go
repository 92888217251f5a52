// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

var someTest = Test{Op: Send, Transport: ibverbs.QPTypeRC, Sizes: []int{2}, Iterations: 1000}

// Ends that would wait for each other for ever are told before anything is sent.
func TestEndsDiffer(t *testing.T) {
	for text, change := range map[string]func(t *Test, w *Where){
		"the peer -o read -c RC -s 2 -n 1000":       func(t *Test, _ *Where) { t.Op = Read },
		"the peer -o send -c UD -s 2 -n 1000":       func(t *Test, _ *Where) { t.Transport = ibverbs.QPTypeUD },
		"the peer -o send -c RC -b -s 2 -n 1000":    func(t *Test, _ *Where) { t.Bandwidth = true },
		"the peer -o send -c RC -s 64 -n 1000":      func(t *Test, _ *Where) { t.Sizes = []int{64} },
		"the peer -o send -c RC -a -n 1000":         func(t *Test, _ *Where) { t.Sizes = []int{2, 4} },
		"the peer -o send -c RC -s 2 -n 2147483647": func(t *Test, _ *Where) { t.Iterations = 1<<31 - 1 },
		"the peer -o send -c RC -s 2 -n 1000 -R":    func(_ *Test, w *Where) { w.RDMACM = true },
	} {
		client, server := pair(t, t.Context())
		other, where := someTest, Where{}
		change(&other, &where)
		client.plan, server.plan = newPlan(&someTest, Where{}), newPlan(&other, where)
		err := both(func() error {
			_, err := client.settle(3)
			require.ErrorContains(t, err, "this one has -o send -c RC -s 2 -n 1000, "+text+";")
			client.hangUp()
			return nil
		}, func() error { _, err := server.settle(3); return err })
		require.ErrorContains(t, err, "the peer -o send -c RC -s 2 -n 1000;")
	}
}

// perftest has zeros there, or whatever its memory had.
func TestNoPlan(t *testing.T) {
	mine := newPlan(&someTest, Where{})
	theirs := mine
	theirs.op = Write
	for _, b := range [][]byte{nil, make([]byte, planSize), bytes.Repeat([]byte{0xff}, planSize), {planMark}, append(theirs.bytes(), 0)} {
		require.NoError(t, mine.compare(b), "%x", b)
	}
	unknown := theirs.bytes()
	unknown[1] = byte(len(Ops))
	require.NoError(t, mine.compare(unknown), "of a newer rdmaperf, with an operation more")
	require.Len(t, theirs.bytes(), planSize)
	require.Error(t, mine.compare(theirs.bytes()))
}
