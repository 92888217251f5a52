package rdmacm

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQueueKeepsOrder(t *testing.T) {
	var q queue
	q.wait() // with nothing in it
	var got []int
	var group sync.WaitGroup
	var inside, total atomic.Int32
	for range 4 {
		group.Go(func() {
			for range 500 {
				q.add(func() {
					if inside.Add(1) != 1 {
						t.Error("two at a time")
					}
					total.Add(1)
					inside.Add(-1)
				})
			}
		})
	}
	for i := range 500 {
		q.add(func() { got = append(got, i) })
	}
	group.Wait()
	q.wait()
	require.EqualValues(t, 2000, total.Load())
	for i, n := range got {
		require.Equal(t, i, n)
	}
	q.mu.Lock() // what works it off ends when it has nothing to do
	defer q.mu.Unlock()
	require.Empty(t, q.waiting)
}
