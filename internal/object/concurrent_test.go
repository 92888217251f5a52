// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// guarded stands for an object of C: it notices a use outside of its life.
type guarded struct {
	Object
	alive atomic.Bool
	bad   atomic.Int64
}

func (g *guarded) use() error {
	if err := g.Use(); err != nil {
		return err
	}
	defer g.Done()
	if !g.alive.Load() {
		g.bad.Add(1)
	}
	return nil
}

func (g *guarded) destroy() error {
	if !g.alive.Swap(false) {
		g.bad.Add(1) // twice
	}
	return nil
}

func TestCloseWaitsForUses(t *testing.T) {
	for name, interrupt := range map[string]func(o *Object){
		"":     func(*Object) {},
		"late": (*Object).wakeClose, // as of a use that ended under an earlier Close, which failed
	} {
		t.Run("wake "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := made(t, "o")
				require.NoError(t, o.Use())
				require.NoError(t, o.Use())
				closed := false
				go func() {
					closed = o.Close(func() {
						require.ErrorIs(t, o.Use(), os.ErrClosed, "new uses are refused before the old ones are asked to end")
						interrupt(o)
					}, destroyed) == nil
				}()
				synctest.Wait()
				require.False(t, closed)
				o.Done()
				synctest.Wait()
				require.False(t, closed)
				o.Done()
				synctest.Wait()
				require.True(t, closed)
			})
		})
	}
}

// A use that makes a child while its parent is being closed keeps the parent.
func TestChildOnItsWay(t *testing.T) {
	parent := made(t, "parent")
	require.NoError(t, parent.Use())
	closing, closed := make(chan struct{}), make(chan error)
	go func() { closed <- parent.Close(func() { close(closing) }, destroyed) }()
	<-closing
	child := made(t, "child", parent)
	parent.Done()
	require.EqualError(t, <-closed, "parent: close first: child")
	require.NoError(t, parent.Err())
	require.NoError(t, child.Close(nil, destroyed))
}

func TestConcurrentClose(t *testing.T) {
	const goroutines = 16
	o := made(t, "o")
	var calls atomic.Int64
	errs := make(chan error, goroutines)
	for range goroutines {
		go func() {
			errs <- o.Close(nil, func() error { calls.Add(1); return nil })
		}()
	}
	for range goroutines {
		require.NoError(t, <-errs)
	}
	require.EqualValues(t, 1, calls.Load())
}

// Uses, children and closes, some of which fail, of the same objects at once.
func TestStress(t *testing.T) {
	const rounds, goroutines, uses = 200, 8, 50
	refused := errors.New("refused")
	for round := range rounds {
		parent := new(guarded)
		parent.alive.Store(true)
		parent.Init(fmt.Sprint("parent ", round))

		var start, all sync.WaitGroup
		start.Add(1)
		var leftovers sync.Map
		work := func(f func(i int)) {
			all.Go(func() {
				start.Wait()
				for i := range uses {
					f(i)
				}
			})
		}
		for range goroutines {
			work(func(int) { _ = parent.use() })
		}
		for range goroutines / 2 {
			work(func(i int) {
				if parent.Use() != nil {
					return
				}
				child := new(guarded)
				child.alive.Store(true)
				child.Init("child", &parent.Object)
				parent.Done()
				if !parent.alive.Load() {
					parent.bad.Add(1) // it has outlived its parent
				}
				_ = child.use()
				if i == uses-1 {
					leftovers.Store(child, nil)
				} else if child.Close(nil, child.destroy) != nil || child.bad.Load() > 0 {
					parent.bad.Add(1)
				}
			})
			work(func(int) { _ = parent.Close(nil, func() error { return refused }) })
		}
		work(func(i int) {
			if i > uses/2 {
				_ = parent.Close(nil, parent.destroy)
			}
		})
		start.Done()
		all.Wait()

		leftovers.Range(func(key, _ any) bool {
			child := key.(*guarded)
			require.NoError(t, child.Close(nil, child.destroy))
			return true
		})
		require.NoError(t, parent.Close(nil, parent.destroy))
		require.Zero(t, parent.bad.Load())
		require.Equal(t, int64(closedBit), parent.state.Load())
		require.Empty(t, parent.children())
	}
}

func (g *guarded) children() map[*Object]struct{} { return g.Object.alive }
