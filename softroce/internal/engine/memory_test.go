// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A fault of another kind is not taken for one.
func TestScatterPanics(t *testing.T) {
	require.Panics(t, func() { scatter(nil, [][]byte{{1}}) })
}

func TestScatter(t *testing.T) {
	for _, tt := range []struct{ src, dst []int }{
		{nil, nil},
		{[]int{0}, nil},
		{[]int{0, 5, 0}, []int{0, 5}},
		{[]int{1, 2, 3}, []int{3, 3}},
		{[]int{5000}, []int{1, 4095, 904}},
		{[]int{4096, 1}, []int{63, 64, 65, 8192}},
		{[]int{7, 8, 9, 1023, 1024, 1025}, []int{3096}},
	} {
		var src, dst [][]byte
		var want, got []byte
		for i, n := range tt.src {
			src = append(src, patternOf(n, uint64(i)))
			want = append(want, src[i]...)
		}
		for _, n := range tt.dst {
			dst = append(dst, make([]byte, n))
		}
		require.Equal(t, noFault, scatter(dst, src))
		for _, b := range dst {
			got = append(got, b...)
		}
		require.Equal(t, want, got[:len(want)])
		for _, b := range got[len(want):] {
			require.Zero(t, b)
		}
	}
}

// A program may look at memory while the device writes it, as it may with
// hardware: the race detector, if the test runs with it, sees nothing.
func TestDeviceWritesLikeHardware(t *testing.T) {
	l, a, b := newLoop(t, 1<<16)
	for i := range a.mr.memory {
		a.mr.memory[i] = 1
	}
	a.post(SendSlot{ID: 1, Opcode: write}.remote(b, 8), a.mr.sge(8, 5003))
	a.post(SendSlot{ID: 2, Opcode: read}.remote(b, 0), a.mr.sge(0, 8))
	a.post(SendSlot{ID: 3, Opcode: cmpSwap, Swap: 1}.remote(b, 8192), a.mr.sge(8192, 8))
	a.post(SendSlot{ID: 4, Opcode: fetchAdd, CompareAdd: 1}.remote(b, 8200), a.mr.sge(8200, 8))
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.settle()
	}()
	for load(word(b.mr.memory, 8200)) == 0 { // which orders nothing
	}
	sum := 0
	for i := range 8300 {
		sum += int(b.mr.memory[i])
		b.mr.memory[i] = 0
	}
	require.Equal(t, 5003+2, sum)
	<-done
	require.Equal(t, []result{ok(1), ok(2), ok(3), ok(4)}, results(a.send))
}
