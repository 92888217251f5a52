// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

var someTest = Test{Op: Send, Transport: ibverbs.QPTypeRC, Sizes: []int{2}, QPs: 1, Iterations: 1000}

// Ends that would wait for each other for ever are told before anything is
// sent.
func TestEndsDiffer(t *testing.T) {
	for text, change := range map[string]func(t *Test, w *Where){
		"the peer read_lat -c RC -s 2 -n 1000":      func(t *Test, _ *Where) { t.Op = Read },
		"the peer send_lat -c UD -s 2 -n 1000":      func(t *Test, _ *Where) { t.Transport = ibverbs.QPTypeUD },
		"the peer send_bw -c RC -s 2 -n 1000":       func(t *Test, _ *Where) { t.Bandwidth = true },
		"the peer send_bw -c RC -b -s 2 -n 1000":    func(t *Test, _ *Where) { t.Bandwidth, t.Both = true, true },
		"the peer send_bw -c RC -q 2 -s 2 -n 1000":  func(t *Test, _ *Where) { t.Bandwidth, t.QPs = true, 2 },
		"the peer send_bw -c RC -q 33 -s 2 -n 1000": func(t *Test, _ *Where) { t.Bandwidth, t.QPs = true, 33 },
		"the peer send_bw -c RC -b -q 64 -s 1073741824 -D 7": func(t *Test, _ *Where) {
			t.Bandwidth, t.Both, t.QPs, t.Sizes, t.Iterations, t.Duration = true, true, MaxQPs, []int{1 << 30}, Endless, 7*time.Second
		},
		"the peer send_lat -c RC -s 64 -n 1000":      func(t *Test, _ *Where) { t.Sizes = []int{64} },
		"the peer send_lat -c RC -a -n 1000":         func(t *Test, _ *Where) { t.Sizes = []int{2, 4} },
		"the peer send_lat -c RC -s 2 -n 2147483647": func(t *Test, _ *Where) { t.Iterations = 1<<31 - 1 },
		"the peer send_lat -c RC -s 2 -n 1000 -R":    func(_ *Test, w *Where) { w.RDMACM = true },
	} {
		client, server := pair(t, t.Context())
		other, where := someTest, Where{}
		change(&other, &where)
		client.plan, server.plan = newPlan(&someTest, Where{}), newPlan(&other, where)
		err := both(func() error {
			_, err := client.settle(3)
			require.ErrorContains(t, err, "this one has send_lat -c RC -s 2 -n 1000, "+text+";")
			client.hangUp()
			return nil
		}, func() error { _, err := server.settle(3); return err })
		require.ErrorContains(t, err, "the peer send_lat -c RC -s 2 -n 1000;")
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
	require.NoError(t, mine.compare(unknown), "of a newer verbena perf, with an operation more")
	require.Len(t, theirs.bytes(), planSize)
	require.Error(t, mine.compare(theirs.bytes()))
}
