// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
)

// A part is memory of an array, from start to end. A slice of it has the
// capacity to reach limit.
type part struct{ start, end, limit int }

func (p part) String() string { return fmt.Sprintf("%d-%d", p.start, p.end) }

func (p part) of(array []byte) []byte { return array[p.start:p.end:p.limit] }

// within returns b's part of an array.
func within(array, b []byte) part {
	first, _ := span(array)
	start, end := span(b)
	return part{int(start - first), int(end - first), int(start-first) + cap(b)}
}

// A recorder stands for a device. It records what it registers and deregisters.
type recorder struct {
	t     *testing.T
	array []byte // whose parts are registered

	mu            sync.Mutex
	calls         []string
	alive         map[*Region]bool // whether it is registered, for all that have been
	protected     []bool           // bytes of array that can only be read
	registering   [][]byte
	onRegister    []error // results of the next calls
	onDeregister  []error
	during        func()          // called without mu while memory is registered; may be nil
	deregistering func(r *Region) // called without mu while a region is deregistered; may be nil
}

func newRecorder(t *testing.T, size int) *recorder {
	return &recorder{t: t, array: make([]byte, size), alive: map[*Region]bool{}, protected: make([]bool, size)}
}

// isProtected reports whether a byte of a part can only be read.
func (d *recorder) isProtected(p part) bool { return slices.Contains(d.protected[p.start:p.end], true) }

// next takes the first of errs.
func next(errs *[]error) (err error) {
	if len(*errs) > 0 {
		err, *errs = (*errs)[0], (*errs)[1:]
	}
	return err
}

func (d *recorder) register(b []byte) (*Region, error) {
	d.mu.Lock()
	for _, other := range d.registering {
		if overlap(b, other) {
			d.t.Errorf("two registrations of %v at once", within(d.array, b))
		}
	}
	d.registering = append(d.registering, b)
	d.calls = append(d.calls, "register "+within(d.array, b).String())
	d.mu.Unlock()
	if d.during != nil {
		d.during()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.registering = slices.DeleteFunc(d.registering, func(other []byte) bool { return &other[0] == &b[0] })
	if err := next(&d.onRegister); err != nil {
		return nil, err
	}
	r := &Region{bytes: b}
	r.readOnly.Store(d.isProtected(within(d.array, b)))
	d.alive[r] = true
	return r, nil
}

func (d *recorder) deregister(r *Region) error {
	if d.deregistering != nil {
		d.deregistering(r)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, "deregister "+within(d.array, r.bytes).String())
	if err := next(&d.onDeregister); err != nil {
		return err
	}
	if !d.alive[r] {
		d.t.Errorf("%v is deregistered twice", within(d.array, r.bytes))
	}
	d.alive[r] = false
	return nil
}

// take returns the calls since the last take.
func (d *recorder) take() (calls []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls, d.calls = d.calls, nil
	return calls
}

// all is a part with all the capacity of an array of 1,000 bytes, and clipped
// one with none.
func all(start, end int) part     { return part{start, end, 1000} }
func clipped(start, end int) part { return part{start, end, end} }

func TestCacheMerges(t *testing.T) {
	for name, test := range map[string]struct {
		cached []part // acquired before, and released
		used   []part // acquired before, and not released
		added  []part
		limit  int64
		ask    part
		want   []string
	}{
		"known":                    {cached: []part{all(100, 200)}, ask: all(100, 200)},
		"inside":                   {cached: []part{all(100, 200)}, ask: all(150, 151)},
		"inside an added one":      {added: []part{all(100, 200)}, ask: all(150, 200)},
		"behind a nested one":      {added: []part{all(0, 900), all(100, 110)}, ask: all(105, 300)},
		"new":                      {cached: []part{all(100, 200)}, ask: all(300, 400), want: []string{"register 300-400"}},
		"overlaps the end":         {cached: []part{all(100, 200)}, ask: all(150, 250), want: []string{"register 100-250", "deregister 100-200"}},
		"overlaps the start":       {cached: []part{all(100, 200)}, ask: clipped(50, 101), want: []string{"register 50-200", "deregister 100-200"}},
		"overlaps two":             {cached: []part{all(100, 200), all(300, 400)}, ask: all(150, 350), want: []string{"register 100-400", "deregister 300-400", "deregister 100-200"}},
		"contains":                 {cached: []part{all(100, 200)}, ask: all(50, 250), want: []string{"register 50-250", "deregister 100-200"}},
		"overlaps a used one":      {used: []part{all(100, 200)}, ask: all(150, 250), want: []string{"register 100-250"}},
		"overlaps an added one":    {added: []part{all(100, 200)}, ask: all(150, 250), want: []string{"register 150-250"}},
		"follows":                  {cached: []part{all(100, 200)}, ask: all(200, 300), want: []string{"register 100-300", "deregister 100-200"}},
		"precedes":                 {cached: []part{all(100, 200)}, ask: all(0, 100), want: []string{"register 0-200", "deregister 100-200"}},
		"follows without proof":    {cached: []part{clipped(100, 200)}, ask: all(200, 300), want: []string{"register 200-300"}},
		"precedes without proof":   {cached: []part{all(100, 200)}, ask: clipped(0, 100), want: []string{"register 0-100"}},
		"follows a larger one":     {cached: []part{all(100, 200)}, ask: all(200, 250), want: []string{"register 200-250"}},
		"fills a gap":              {cached: []part{all(100, 200), all(300, 500)}, ask: all(200, 300), want: []string{"register 100-500", "deregister 300-500", "deregister 100-200"}},
		"proof by a contained one": {cached: []part{{110, 190, 300}, all(200, 300)}, ask: clipped(100, 200), want: []string{"register 100-300", "deregister 200-300", "deregister 110-190"}},
		"more than the limit":      {used: []part{all(100, 200)}, ask: all(150, 250), limit: 149, want: []string{"register 150-250"}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.limit == 0 {
				test.limit = math.MaxInt64
			}
			d := newRecorder(t, 1000)
			c := newCache(test.limit, d.register, d.deregister)
			var used []*Region
			for _, p := range test.used {
				r, err := c.acquire(p.of(d.array), false)
				require.NoError(t, err)
				used = append(used, r)
			}
			for _, p := range test.cached {
				r, err := c.acquire(p.of(d.array), false)
				require.NoError(t, err)
				c.release(r)
			}
			for _, p := range test.added {
				require.NoError(t, c.add(&Region{bytes: p.of(d.array)}))
			}
			d.take()

			b := test.ask.of(d.array)
			r, err := c.acquire(b, false)
			require.NoError(t, err)
			require.True(t, contains(r.bytes, b))
			require.Equal(t, test.want, d.take())
			again, err := c.acquire(b, false)
			require.NoError(t, err)
			require.Same(t, r, again)
			require.Empty(t, d.take())

			for _, r := range append(used, r, again) {
				c.release(r)
			}
			require.NoError(t, c.close())
			for r, alive := range d.alive {
				require.False(t, alive, "%v", within(d.array, r.bytes))
			}
		})
	}
}

// A program that uses a large slice in small pieces ends up with few regions,
// and each byte is registered a few times.
func TestPiecesMerge(t *testing.T) {
	const pieces, size = 1024, 16
	for name, order := range map[string]func(i int) int{
		"ascending":  func(i int) int { return i },
		"descending": func(i int) int { return pieces - 1 - i },
		"odd last":   func(i int) int { return i*2%pieces + i*2/pieces },
	} {
		t.Run(name, func(t *testing.T) {
			d := newRecorder(t, pieces*size)
			c := newCache(math.MaxInt64, d.register, d.deregister)
			for i := range pieces {
				r, err := c.acquire(d.array[order(i)*size:][:size], false)
				require.NoError(t, err)
				c.release(r)
			}
			require.LessOrEqual(t, count(c.writable), 11)
			total := 0
			for r := range d.alive {
				total += len(r.bytes)
			}
			require.LessOrEqual(t, total, 11*pieces*size)
			require.NoError(t, c.close())
		})
	}
}

func TestReplacedRegionEndsAtItsRelease(t *testing.T) {
	d := newRecorder(t, 1000)
	c := newCache(math.MaxInt64, d.register, d.deregister)
	old, err := c.acquire(all(100, 200).of(d.array), false)
	require.NoError(t, err)
	again, err := c.acquire(all(100, 200).of(d.array), false)
	require.NoError(t, err)
	union, err := c.acquire(all(150, 250).of(d.array), false)
	require.NoError(t, err)
	third, err := c.acquire(all(100, 200).of(d.array), false)
	require.NoError(t, err)
	require.Same(t, union, third)
	c.release(old)
	require.Equal(t, []string{"register 100-200", "register 100-250"}, d.take())
	c.release(again)
	require.Equal(t, []string{"deregister 100-200"}, d.take())
	c.release(union)
	c.release(third)
	require.NoError(t, c.close())
	require.Equal(t, []string{"deregister 100-250"}, d.take())
}

func TestEviction(t *testing.T) {
	d := newRecorder(t, 1000)
	c := newCache(300, d.register, d.deregister)
	acquire := func(start int) *Region {
		r, err := c.acquire(clipped(start, start+100).of(d.array), false)
		require.NoError(t, err)
		return r
	}
	first, second, third := acquire(0), acquire(200), acquire(400)
	c.release(second)
	c.release(first)
	c.release(third)
	c.release(acquire(200)) // now the one that was used last
	d.take()

	fourth := acquire(600)
	require.Equal(t, []string{"deregister 0-100", "register 600-700"}, d.take(), "the least recently used one goes first")
	first, second = acquire(0), acquire(200)
	require.Equal(t, []string{"deregister 400-500", "register 0-100"}, d.take())
	fifth := acquire(800)
	require.Equal(t, []string{"register 800-900"}, d.take(), "none that is in use is deregistered")
	c.release(second)
	require.Equal(t, []string{"deregister 200-300"}, d.take(), "at its release, as the limit is exceeded")
	c.release(fourth)
	c.release(first)
	c.release(fifth)
	require.Empty(t, d.take())

	require.NoError(t, c.add(&Region{bytes: d.array}))
	c.release(acquire(500))
	require.Empty(t, d.take(), "regions of the program do not count")
	require.NoError(t, c.close())
}

func TestNothingStaysWithoutLimit(t *testing.T) {
	d := newRecorder(t, 1000)
	c := newCache(0, d.register, d.deregister)
	r, err := c.acquire(all(0, 10).of(d.array), false)
	require.NoError(t, err)
	require.Equal(t, []string{"register 0-10"}, d.take())
	c.release(r)
	require.Equal(t, []string{"deregister 0-10"}, d.take())
	require.NoError(t, c.close())
}

func TestRegistrationFails(t *testing.T) {
	other := errors.New("other")
	for name, test := range map[string]struct {
		ask     part
		results []error
		err     error
		want    []string
	}{
		"no memory":          {all(700, 800), []error{syscall.ENOMEM}, nil, []string{"register 700-800", "deregister 300-400", "register 700-800"}},
		"wrapped":            {all(700, 800), []error{fmt.Errorf("x: %w", syscall.ENOMEM)}, nil, []string{"register 700-800", "deregister 300-400", "register 700-800"}},
		"no memory twice":    {all(700, 800), []error{syscall.ENOMEM, syscall.ENOMEM}, syscall.ENOMEM, []string{"register 700-800", "deregister 300-400", "register 700-800"}},
		"other error":        {all(700, 800), []error{other}, other, []string{"register 700-800"}},
		"no memory for all":  {all(150, 250), []error{syscall.ENOMEM}, nil, []string{"register 100-250", "deregister 300-400", "register 150-250"}},
		"other error of all": {all(150, 250), []error{other}, nil, []string{"register 100-250", "register 150-250"}},
		"both fail":          {all(150, 250), []error{syscall.ENOMEM, other}, other, []string{"register 100-250", "deregister 300-400", "register 150-250"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newRecorder(t, 1000)
			c := newCache(1000, d.register, d.deregister)
			used, err := c.acquire(all(100, 200).of(d.array), false)
			require.NoError(t, err)
			unused, err := c.acquire(all(300, 400).of(d.array), false)
			require.NoError(t, err)
			c.release(unused)
			d.take()

			d.onRegister = test.results
			b := test.ask.of(d.array)
			r, err := c.acquire(b, false)
			require.Equal(t, test.want, d.take())
			if test.err == nil {
				require.NoError(t, err)
				require.True(t, contains(r.bytes, b))
				c.release(r)
			} else {
				require.ErrorIs(t, err, test.err)
				r, err := c.acquire(b, false)
				require.NoError(t, err, "the next call tries again")
				c.release(r)
			}
			c.release(used)
			require.NoError(t, c.close())
			require.Zero(t, c.size)
		})
	}
}

func TestEmptyMemory(t *testing.T) {
	d := newRecorder(t, 10)
	c := newCache(0, d.register, d.deregister)
	_, err := c.acquire(d.array[5:5], false)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.NoError(t, c.forget(nil))
}

// The cache registers and deregisters without its lock. Otherwise these calls
// would never return.
func TestCacheIsFreeMeanwhile(t *testing.T) {
	d := newRecorder(t, 1000)
	c := newCache(250, d.register, d.deregister)
	known := &Region{bytes: clipped(900, 1000).of(d.array)}
	require.NoError(t, c.add(known))
	calls := 0
	d.during = func() {
		calls++
		r, err := c.acquire(known.bytes, false)
		require.NoError(t, err)
		c.release(r)
	}
	d.deregistering = func(*Region) { d.during() }
	for start := range 5 {
		r, err := c.acquire(clipped(start*150, start*150+100).of(d.array), false)
		require.NoError(t, err)
		c.release(r)
	}
	require.NoError(t, c.forget(d.array))
	require.Equal(t, 10, calls)
	require.NoError(t, c.close())
}

func TestSameMemoryIsRegisteredOnce(t *testing.T) {
	for name, ask := range map[string]part{
		"same":     all(100, 200),
		"inside":   all(120, 130),
		"overlaps": all(150, 250),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newRecorder(t, 1000)
				c := newCache(math.MaxInt64, d.register, d.deregister)
				finish := make(chan struct{})
				d.during = func() { <-finish }
				var first, second *Region
				var wg sync.WaitGroup
				wg.Go(func() { first, _ = c.acquire(all(100, 200).of(d.array), false) })
				synctest.Wait()
				wg.Go(func() { second, _ = c.acquire(ask.of(d.array), false) })
				synctest.Wait()
				require.Equal(t, []string{"register 100-200"}, d.take())
				require.Nil(t, second)
				close(finish)
				wg.Wait()
				require.NotNil(t, first)
				require.True(t, contains(second.bytes, ask.of(d.array)))
				if name == "overlaps" {
					require.Equal(t, []string{"register 100-250"}, d.take())
				} else {
					require.Same(t, first, second)
					require.Empty(t, d.take())
				}
				c.release(first)
				c.release(second)
				require.NoError(t, c.close())
			})
		})
	}
}

// The second caller tries by itself if the first one's registration fails.
func TestSecondCallerTriesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newRecorder(t, 1000)
		c := newCache(math.MaxInt64, d.register, d.deregister)
		finish := make(chan struct{})
		d.during = func() { <-finish }
		d.onRegister = []error{syscall.EFAULT}
		var errs [2]error
		for i := range errs {
			go func() {
				r, err := c.acquire(all(100, 200).of(d.array), false)
				if err == nil {
					c.release(r)
				}
				errs[i] = err
			}()
			synctest.Wait()
		}
		close(finish)
		synctest.Wait()
		require.ErrorIs(t, errs[0], syscall.EFAULT)
		require.NoError(t, errs[1])
		require.NoError(t, c.close())
	})
}

// Memory that is known and other memory do not wait for a registration in
// progress.
func TestOthersDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newRecorder(t, 1000)
		c := newCache(math.MaxInt64, d.register, d.deregister)
		old, err := c.acquire(all(100, 200).of(d.array), false)
		require.NoError(t, err)
		c.release(old)
		finish := make(chan struct{})
		d.during = func() { <-finish }
		done := make(chan *Region)
		go func() {
			r, _ := c.acquire(all(150, 300).of(d.array), false)
			done <- r
		}()
		synctest.Wait()

		d.during = nil // for the calls from now on
		known, err := c.acquire(all(150, 200).of(d.array), false)
		require.NoError(t, err)
		require.Same(t, old, known)
		apart, err := c.acquire(all(300, 400).of(d.array), false)
		require.NoError(t, err)
		require.Equal(t, []string{"register 100-200", "register 100-300", "register 300-400"}, d.take())

		close(finish)
		union := <-done
		require.Len(t, union.bytes, 200)
		require.Empty(t, d.take(), "the old region is in use")
		c.release(known)
		require.Equal(t, []string{"deregister 100-200"}, d.take())
		c.release(apart)
		c.release(union)
		require.NoError(t, c.close())
	})
}

// A registration that finds no memory waits for the deregistrations of other
// goroutines before it tries again.
func TestNoMemoryWaitsForDeregistrations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newRecorder(t, 1000)
		c := newCache(math.MaxInt64, d.register, d.deregister)
		r, err := c.acquire(all(100, 200).of(d.array), false)
		require.NoError(t, err)
		c.release(r)
		d.take()
		finish := make(chan struct{})
		d.deregistering = func(*Region) { <-finish }
		var wg sync.WaitGroup
		wg.Go(func() { require.NoError(t, c.forget(r.bytes)) })
		synctest.Wait()
		d.onRegister = []error{syscall.ENOMEM}
		wg.Go(func() {
			r, err := c.acquire(all(300, 400).of(d.array), false)
			require.NoError(t, err)
			c.release(r)
		})
		synctest.Wait()
		require.Equal(t, []string{"register 300-400"}, d.take())
		close(finish)
		wg.Wait()
		require.Equal(t, []string{"deregister 100-200", "register 300-400"}, d.take())
		require.NoError(t, c.close())
	})
}

func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newRecorder(t, 1000)
		c := newCache(math.MaxInt64, d.register, d.deregister)
		acquire := func(p part) *Region {
			r, err := c.acquire(p.of(d.array), false)
			require.NoError(t, err)
			return r
		}
		c.release(acquire(all(0, 100)))
		c.release(acquire(clipped(200, 300)))
		used := acquire(clipped(301, 400))
		replaced := acquire(clipped(500, 600))
		c.release(acquire(clipped(550, 650)))
		c.release(acquire(clipped(700, 800)))
		pinned := &Region{bytes: clipped(250, 450).of(d.array)}
		require.NoError(t, c.add(pinned))
		finish := make(chan struct{})
		d.during = func() { <-finish }
		registered := make(chan *Region)
		go func() { registered <- acquire(clipped(650, 700)) }()
		synctest.Wait()
		d.take()

		done := false
		go func() {
			require.NoError(t, c.forget(clipped(299, 651).of(d.array)))
			done = true
		}()
		synctest.Wait()
		require.ElementsMatch(t, []string{"deregister 200-300", "deregister 500-650"}, d.take(), "at once")
		d.during = nil
		fresh := acquire(clipped(500, 510))
		require.Equal(t, []string{"register 500-510"}, d.take(), "the region is not found while forget waits")

		for i, end := range []func(){
			func() { c.release(used) },
			func() { c.release(replaced) },
			func() { close(finish); c.release(<-registered) },
		} {
			require.False(t, done, i)
			end()
			synctest.Wait()
		}
		require.True(t, done)
		require.Equal(t, []string{"deregister 301-400", "deregister 500-600", "deregister 650-700"}, d.take())
		c.release(fresh)
		c.release(acquire(clipped(0, 100)))
		c.release(acquire(clipped(700, 800)))
		require.Empty(t, d.take(), "the others stay")
		found := acquire(clipped(301, 400))
		require.Same(t, pinned, found)
		c.release(found)
		require.NoError(t, c.close())
	})
}

func TestCacheClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newRecorder(t, 1000)
		c := newCache(math.MaxInt64, d.register, d.deregister)
		used, err := c.acquire(all(100, 200).of(d.array), false)
		require.NoError(t, err)
		pinned := &Region{bytes: clipped(250, 450).of(d.array)}
		require.NoError(t, c.add(pinned))
		closed := make(chan error, 2)
		for range 2 {
			go func() { closed <- c.close() }()
		}
		synctest.Wait()
		require.Empty(t, closed, "a region is in use")
		for _, b := range [][]byte{used.bytes, pinned.bytes, all(800, 900).of(d.array)} {
			_, err = c.acquire(b, false)
			require.ErrorIs(t, err, os.ErrClosed)
		}
		require.ErrorIs(t, c.add(&Region{bytes: d.array}), os.ErrClosed)
		require.ErrorIs(t, c.use(pinned), errEngineClosed)
		c.release(used)
		require.NoError(t, <-closed)
		require.NoError(t, <-closed)
		require.NoError(t, c.close())
		require.Equal(t, []string{"register 100-200", "deregister 100-200"}, d.take())
		require.True(t, c.remove(t.Context(), pinned))
	})
}

func TestAddAndRemove(t *testing.T) {
	d := newRecorder(t, 1000)
	c := newCache(0, d.register, d.deregister)
	r := &Region{bytes: all(100, 200).of(d.array)}
	same := &Region{bytes: r.bytes}
	require.NoError(t, c.add(r))
	require.NoError(t, c.add(same), "the same memory twice, such as with other access")
	require.ErrorIs(t, c.add(r), syscall.EINVAL)
	found, err := c.acquire(r.bytes, false)
	require.NoError(t, err)
	require.False(t, c.remove(t.Context(), found), "it is in use")
	again, err := c.acquire(r.bytes, false)
	require.NoError(t, err)
	require.Same(t, found, again, "remove has done nothing")
	c.release(again)
	c.release(found)
	for range 2 {
		require.True(t, c.remove(t.Context(), found))
	}
	require.ErrorIs(t, c.use(found), os.ErrClosed)
	other, err := c.acquire(r.bytes, false)
	require.NoError(t, err)
	require.NotSame(t, found, other)
	c.release(other)
	require.True(t, c.remove(t.Context(), r))
	require.True(t, c.remove(t.Context(), same))
	require.Empty(t, c.writable)
	require.Empty(t, d.take())
	require.ErrorIs(t, c.add(r), syscall.EINVAL)
}

// remove waits for those that use the memory together with more, but lets no
// others join them.
func TestRemoveWaits(t *testing.T) {
	for name, test := range map[string]struct {
		use  bool // the region itself meanwhile
		want bool
	}{
		"until they are done":        {want: true},
		"but the region is used too": {use: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newRecorder(t, 1000)
				c := newCache(math.MaxInt64, d.register, d.deregister)
				acquire := func(p part) *Region {
					found, err := c.acquire(p.of(d.array), false)
					require.NoError(t, err)
					return found
				}
				slab := acquire(all(0, 900))
				r := &Region{bytes: clipped(100, 200).of(d.array)}
				require.NoError(t, c.add(r))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				require.False(t, c.remove(ctx, r), "in a second")
				require.Same(t, r, acquire(clipped(100, 200)))
				c.release(r)

				finish := make(chan struct{})
				d.during = func() { <-finish }
				var pending *Region
				go func() { pending = acquire(clipped(150, 250)) }() // whose registration is in progress
				synctest.Wait()
				removed := make(chan bool, 1)
				go func() { removed <- c.remove(t.Context(), r) }()
				synctest.Wait()
				d.during = nil
				other := acquire(clipped(300, 400))
				require.NotSame(t, slab, other)
				c.release(slab)
				close(finish)
				synctest.Wait()
				require.Empty(t, removed)
				if test.use {
					require.NoError(t, c.use(r))
				}
				c.release(pending)
				require.Equal(t, test.want, <-removed)
				if test.use {
					c.release(r)
					require.True(t, c.remove(t.Context(), r))
				}
				require.NotSame(t, r, acquire(clipped(100, 200)))
				c.release(c.writable.find(span(clipped(100, 200).of(d.array))))
				c.release(other)
				require.NoError(t, c.close())
			})
		})
	}
}

// Memory that the program cannot access has users, but no addresses.
func TestRegionWithoutBytes(t *testing.T) {
	d := newRecorder(t, 1000)
	c := newCache(0, d.register, d.deregister)
	r := new(Region)
	require.ErrorIs(t, c.use(r), os.ErrClosed, "it is not in the cache")
	require.NoError(t, c.add(r))
	require.NoError(t, c.use(r))
	require.Empty(t, c.writable)
	require.False(t, c.remove(t.Context(), r))
	c.release(r)
	require.True(t, c.remove(t.Context(), r))
	require.NoError(t, c.close())
}

// A region whose deregistration has failed is kept, so that its memory is not
// reused, and forget and close try again.
func TestDeregistrationFails(t *testing.T) {
	d := newRecorder(t, 1000)
	c := newCache(0, d.register, d.deregister)
	for _, p := range []part{clipped(0, 100), clipped(200, 300)} {
		d.onDeregister = []error{syscall.EBUSY}
		r, err := c.acquire(p.of(d.array), false)
		require.NoError(t, err)
		c.release(r)
	}
	require.Zero(t, c.size)
	require.NoError(t, c.forget(all(100, 200).of(d.array)), "of other memory")
	d.take()

	d.onDeregister = []error{syscall.EBUSY}
	require.ErrorIs(t, c.forget(all(99, 100).of(d.array)), syscall.EBUSY)
	require.NoError(t, c.forget(all(99, 100).of(d.array)))
	require.Equal(t, []string{"deregister 0-100", "deregister 0-100"}, d.take())
	r, err := c.acquire(all(250, 260).of(d.array), false)
	require.NoError(t, err)
	require.Len(t, r.bytes, 10, "acquire does not find the region")
	c.release(r)
	d.take()

	d.onDeregister = []error{syscall.EBUSY}
	require.ErrorIs(t, c.close(), syscall.EBUSY)
	require.NoError(t, c.close())
	require.NoError(t, c.close())
	require.Equal(t, []string{"deregister 200-300", "deregister 200-300"}, d.take())
}

// Objects that follow each other in the heap are not merged. Under the race
// detector, a slice over two of them ends the program.
func TestNeighboursInTheHeapStayApart(t *testing.T) {
	c := newCache(math.MaxInt64,
		func(b []byte) (*Region, error) { return &Region{bytes: b}, nil },
		func(*Region) error { return nil })
	neighbours := 0
	var end uintptr
	for range 1000 {
		r, err := c.acquire(make([]byte, 64), false)
		require.NoError(t, err)
		require.Len(t, r.bytes, 64)
		c.release(r)
		start, next := span(r.bytes)
		if start == end {
			neighbours++
		}
		end = next
	}
	require.NotZero(t, neighbours)
	require.NoError(t, c.close())
}

// A cached region keeps its memory, as the device may access it.
func TestCachedMemoryIsReachable(t *testing.T) {
	c := newCache(math.MaxInt64,
		func(b []byte) (*Region, error) { return &Region{bytes: b}, nil },
		func(*Region) error { return nil })
	acquire := func() (weak.Pointer[byte], uintptr) {
		b := make([]byte, 4096)
		r, err := c.acquire(b[:100:100], false)
		require.NoError(t, err)
		r2, err := c.acquire(b[50:200:200], false) // joined without a slice of all the memory
		require.NoError(t, err)
		c.release(r)
		c.release(r2)
		start, _ := span(b)
		return weak.Make(&b[0]), start
	}
	p, start := acquire()
	for range 3 {
		runtime.GC()
	}
	require.NotNil(t, p.Value())
	got, _ := span(c.writable.root.region.bytes)
	require.Equal(t, start, got)
	require.NoError(t, c.close())
	for p.Value() != nil {
		runtime.GC()
	}
}

// count returns the number of regions in an index.
func count(x index) (n int) {
	for range x.touching(0, math.MaxUint) {
		n++
	}
	return n
}

// The index agrees with a search of all regions, however they are nested.
func TestIndex(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		array := make([]byte, 100)
		var x index
		var regions []*Region
		for range 100 {
			if len(regions) > 0 && rnd.IntN(3) == 0 {
				i := rnd.IntN(len(regions))
				require.True(t, x.remove(regions[i]))
				require.False(t, x.remove(regions[i]))
				regions = slices.Delete(regions, i, i+1)
			} else {
				start := rnd.IntN(len(array))
				r := &Region{bytes: array[start : start+1+rnd.IntN(len(array)-start)]}
				x.insert(r)
				regions = append(regions, r)
			}
			require.Equal(t, len(regions), count(x))
			start := rnd.IntN(len(array))
			b := array[start : start+1+rnd.IntN(len(array)-start)]
			isThere := slices.ContainsFunc(regions, func(r *Region) bool { return contains(r.bytes, b) })
			r := x.find(span(b))
			require.Equal(t, isThere, r != nil)
			require.True(t, r == nil || contains(r.bytes, b) && slices.Contains(regions, r))
			touching := slices.Collect(x.touching(span(b)))
			for _, r := range regions {
				p, q := within(array, r.bytes), within(array, b)
				require.Equal(t, p.start <= q.end && p.end >= q.start, slices.Contains(touching, r))
			}
		}
	}
}

// BenchmarkIndex measures what a region that comes and goes takes with more and
// more regions, in orders of their addresses.
func BenchmarkIndex(b *testing.B) {
	for _, order := range []string{"ascending", "descending", "random"} {
		for _, n := range []int{1000, 10_000, 100_000} {
			b.Run(fmt.Sprint(order, "-", n), func(b *testing.B) {
				array, regions := make([]byte, 64*n), make([]*Region, n)
				for i := range regions {
					regions[i] = &Region{bytes: array[64*i:][:64]}
				}
				switch order {
				case "descending":
					slices.Reverse(regions)
				case "random":
					rand.New(rand.NewPCG(1, 1)).Shuffle(n, func(i, j int) { regions[i], regions[j] = regions[j], regions[i] })
				}
				for b.Loop() {
					var x index
					for _, r := range regions {
						x.insert(r)
					}
					for _, r := range regions {
						x.remove(r)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/region")
			})
		}
	}
}

// A modelRegion is a region as the model knows it.
type modelRegion struct {
	part
	region   *Region
	readOnly bool
	added    bool
	users    int
	ended    bool
}

func (m *modelRegion) contains(p part) bool { return m.start <= p.start && p.end <= m.end }

func (m *modelRegion) overlaps(p part) bool { return m.start < p.end && p.start < m.end }

// A model says what a cache should do, for one goroutine. It looks at all
// regions each time.
type model struct {
	t            *testing.T
	device       *recorder
	cache        *cache
	regions      []*modelRegion // all that are registered
	unused       []*modelRegion // in the order of their last use
	failed       []*modelRegion // not among regions
	held         []*modelRegion // one for each use
	onRegister   []error
	onDeregister []error
	want         []string // calls of the device
}

func newModel(t *testing.T, limit int64) *model {
	d := newRecorder(t, 256)
	return &model{t: t, device: d, cache: newCache(limit, d.register, d.deregister)}
}

func (m *model) size() (n int64) {
	for _, r := range m.regions {
		if !r.added {
			n += int64(r.end - r.start)
		}
	}
	return n
}

func (m *model) deregister(r *modelRegion) {
	m.want = append(m.want, "deregister "+r.String())
	r.ended = true
	m.regions, m.unused = remove(m.regions, r), remove(m.unused, r)
	if next(&m.onDeregister) != nil {
		m.failed = append(m.failed, r)
	}
}

func (m *model) evict(limit int64) {
	for m.size() > limit && len(m.unused) > 0 {
		m.deregister(m.unused[0])
	}
}

// union returns the memory to register for p.
func (m *model) union(p part) part {
	all := p
	for {
		before := all
		for _, r := range m.regions {
			first, second := all, r.part
			if second.start < first.start {
				first, second = second, first
			}
			isNext := first.end == second.start && first.limit > first.end && r.end-r.start <= all.end-all.start
			if !r.added && !r.ended && !r.readOnly && (r.overlaps(all) || isNext) {
				all = part{min(all.start, r.start), max(all.end, r.end), max(all.limit, r.limit)}
			}
		}
		if all == before {
			break
		}
	}
	if int64(all.end-all.start) > m.cache.limit {
		return p
	}
	return all
}

// register returns the new region for p, or nil if registrations fail.
func (m *model) register(p part) *modelRegion {
	all := m.union(p)
	n := int64(all.end - all.start)
	m.evict(m.cache.limit - n)
	isMore := all.start != p.start || all.end != p.end
	m.want = append(m.want, "register "+all.String())
	err := next(&m.onRegister)
	if err == nil && isMore && m.device.isProtected(all) {
		m.deregister(&modelRegion{part: all})
		all = p
		m.want = append(m.want, "register "+all.String())
		err = next(&m.onRegister)
	}
	if err != nil {
		if err == syscall.ENOMEM {
			m.evict(0)
		}
		if err != syscall.ENOMEM && !isMore {
			return nil
		}
		all = p
		m.want = append(m.want, "register "+all.String())
		if next(&m.onRegister) != nil {
			return nil
		}
	}
	fresh := &modelRegion{part: all, readOnly: m.device.isProtected(all)}
	for _, r := range m.inOrder() {
		if !r.added && !r.ended && fresh.contains(r.part) && (r.readOnly || !fresh.readOnly) {
			r.ended = true
			if r.users == 0 {
				m.deregister(r)
			}
		}
	}
	m.regions = append(m.regions, fresh)
	return fresh
}

// knows reports whether a region, writable if isWritable is set, contains p.
func (m *model) knows(p part, isWritable bool) bool {
	return slices.ContainsFunc(m.regions, func(r *modelRegion) bool { return !r.ended && r.contains(p) && !(isWritable && r.readOnly) })
}

// acquire compares the results of acquire.
func (m *model) acquire(p part, written bool) {
	isKnown, isWritable := m.knows(p, written), m.knows(p, true)
	var fresh *modelRegion
	if !isKnown {
		fresh = m.register(p)
	}
	region, err := m.cache.acquire(p.of(m.device.array), written)
	if !isKnown && fresh == nil {
		require.Error(m.t, err)
		return
	}
	require.NoError(m.t, err)
	if fresh != nil {
		fresh.region = region
	}
	i := slices.IndexFunc(m.regions, func(r *modelRegion) bool { return r.region == region })
	require.GreaterOrEqual(m.t, i, 0)
	r := m.regions[i]
	require.False(m.t, r.ended)
	require.Equal(m.t, r.part.String(), within(m.device.array, region.bytes).String())
	require.True(m.t, r.contains(p))
	require.False(m.t, isWritable && r.readOnly, "a writable one is hidden")
	require.False(m.t, written && r.readOnly && !m.device.isProtected(p), "memory that may be written")
	r.users++
	m.unused = remove(m.unused, r)
	m.held = append(m.held, r)
}

func (m *model) release(i int) {
	r := m.held[i]
	m.held = slices.Delete(m.held, i, i+1)
	r.users--
	switch {
	case r.users > 0 || r.added:
	case r.ended:
		m.deregister(r)
	default:
		m.unused = append(m.unused, r)
		m.evict(m.cache.limit)
	}
	m.cache.release(r.region)
}

func (m *model) add(p part) {
	r := &modelRegion{part: p, added: true, readOnly: m.device.isProtected(p), region: &Region{bytes: p.of(m.device.array)}}
	r.region.readOnly.Store(r.readOnly)
	m.regions = append(m.regions, r)
	require.NoError(m.t, m.cache.add(r.region))
}

// protect changes whether memory can only be read.
func (m *model) protect(p part, readOnly bool) {
	for i := p.start; i < p.end; i++ {
		m.device.protected[i] = readOnly
	}
}

// setReadOnly tells the cache that a region is read-only now.
func (m *model) setReadOnly(r *modelRegion) {
	r.readOnly = true
	m.cache.setReadOnly(r.region)
}

// remove compares the results of remove with a context that has ended.
func (m *model) remove(r *modelRegion) {
	isUsed := r.users > 0
	if !isUsed {
		for _, other := range m.inOrder() {
			if !other.added && other.overlaps(r.part) {
				other.ended = true
				if other.users == 0 {
					m.deregister(other)
				}
			}
		}
		isUsed = slices.ContainsFunc(m.regions, func(other *modelRegion) bool { return !other.added && other.overlaps(r.part) })
	}
	if !isUsed {
		m.regions = remove(m.regions, r)
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	cancel()
	require.Equal(m.t, !isUsed, m.cache.remove(ctx, r.region))
}

// forget compares the results of forget, or of close if all is true, unless it
// would wait.
func (m *model) forget(p part, isAll bool) {
	matches := func(r *modelRegion) bool { return isAll || r.overlaps(p) }
	for _, r := range m.held {
		if !r.added && matches(r) {
			return
		}
	}
	var again []*modelRegion
	for _, r := range m.failed {
		if matches(r) {
			again = append(again, r)
		}
	}
	m.failed = slices.DeleteFunc(m.failed, matches)
	for _, r := range again {
		m.deregister(r)
	}
	for _, r := range m.inOrder() {
		if !r.added && matches(r) {
			m.deregister(r)
		}
	}
	isClean := !slices.ContainsFunc(m.failed, matches)
	var err error
	if isAll {
		err = m.cache.close()
	} else {
		err = m.cache.forget(p.of(m.device.array))
	}
	require.Equal(m.t, isClean, err == nil, "%v", err)
}

// inOrder returns the regions that acquire finds in the order in which the
// cache deregisters several.
func (m *model) inOrder() (ordered []*modelRegion) {
	for region := range m.cache.touching(0, math.MaxUint) {
		for _, r := range m.regions {
			if r.region == region {
				ordered = append(ordered, r)
			}
		}
	}
	return ordered
}

// check compares the state of the cache and its calls of the device.
func (m *model) check() {
	require.Equal(m.t, m.want, m.device.take())
	m.want = nil
	require.Equal(m.t, m.size(), m.cache.size)
	require.Len(m.t, m.cache.failed, len(m.failed))
	found := 0
	for _, r := range m.regions {
		if !r.ended {
			found++
		}
		require.Equal(m.t, r.users, r.region.users)
		require.Equal(m.t, r.readOnly, r.region.readOnly.Load())
		require.Equal(m.t, !r.added, m.device.alive[r.region], "no region is deregistered before its time")
	}
	require.Len(m.t, m.inOrder(), found)
	require.Equal(m.t, found, count(m.cache.writable)+count(m.cache.readOnly))
	var r *Region
	for _, u := range m.unused {
		require.Same(m.t, r, u.region.prev)
		r = u.region
	}
	require.Same(m.t, r, m.cache.unused.last)
}

// run does what ops say, and then gives all back.
func (m *model) run(ops []byte) {
	take := func() (n int) {
		if len(ops) > 0 {
			n, ops = int(ops[0]), ops[1:]
		}
		return n
	}
	takePart := func() part {
		start := take() % 256
		end := min(start+1+take()%64, 256)
		return part{start, end, min(end+take()%16, 256)}
	}
	for len(ops) > 0 {
		switch op := take(); op % 16 {
		case 0, 1, 2, 3, 4, 5:
			m.acquire(takePart(), op>>4&1 != 0)
		case 6, 7, 8, 9, 10:
			if len(m.held) > 0 {
				m.release(take() % len(m.held))
			}
		case 11:
			if op>>4&1 != 0 {
				m.protect(takePart(), op>>5&1 != 0)
			} else {
				m.add(takePart())
			}
		case 12:
			if op>>4&3 == 3 && len(m.regions) > 0 {
				m.setReadOnly(m.regions[take()%len(m.regions)])
				break
			}
			added := slices.DeleteFunc(slices.Clone(m.regions), func(r *modelRegion) bool { return !r.added })
			if len(added) > 0 {
				m.remove(added[take()%len(added)])
			}
		case 13:
			m.forget(takePart(), false)
		case 14:
			err := []error{syscall.ENOMEM, syscall.EFAULT}[op>>4&1]
			m.onRegister = append(m.onRegister, err)
			m.device.onRegister = append(m.device.onRegister, err)
		case 15:
			m.onDeregister = append(m.onDeregister, syscall.EBUSY)
			m.device.onDeregister = append(m.device.onDeregister, syscall.EBUSY)
		}
		m.check()
	}
	for len(m.held) > 0 {
		m.release(0)
		m.check()
	}
	m.onDeregister, m.device.onDeregister = nil, nil
	m.forget(part{}, true)
	m.check()
	for r, alive := range m.device.alive {
		require.False(m.t, alive, "%v", within(m.device.array, r.bytes))
	}
}

func TestModel(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			ops := make([]byte, 500)
			for i := range ops {
				ops[i] = byte(rnd.Uint32())
			}
			newModel(t, rnd.Int64N(300)).run(ops)
		})
	}
}

func FuzzCache(f *testing.F) {
	f.Add(uint16(100), []byte{0, 10, 20, 8, 0, 30, 20, 8, 6, 0, 6, 0, 13, 15, 20, 0})
	f.Add(uint16(0), []byte{14, 0, 10, 20, 8, 11, 0, 63, 0, 0, 10, 20, 8, 12, 0, 6, 0, 12, 0})
	f.Add(uint16(300), []byte{0, 0, 16, 8, 15, 0, 8, 16, 8, 6, 0, 13, 0, 4, 0})
	f.Fuzz(func(t *testing.T, limit uint16, ops []byte) {
		if len(ops) > 2000 {
			t.Skip("too long")
		}
		newModel(t, int64(limit)).run(ops)
	})
}

// watched has a variable for each region, which uses read and
// deregistrations write: the race detector reports a use that no lock keeps
// apart from the deregistration.
type watched struct {
	sync.Map // from *Region to *bool, whether it is registered
}

func (w *watched) isAlive(r *Region) bool {
	alive, ok := w.Load(r)
	return ok && *alive.(*bool)
}

func TestCacheConcurrently(t *testing.T) {
	const goroutines, rounds, size = 8, 300, 4096
	var regions watched
	d := newRecorder(t, size)
	d.during = runtime.Gosched
	c := newCache(size/2,
		func(b []byte) (*Region, error) {
			if b[0]++; b[0]%16 == 0 { // registrations of the same memory are not at the same time
				return nil, syscall.ENOMEM
			}
			r, err := d.register(b)
			if err == nil {
				regions.Store(r, new(true))
			}
			return r, err
		},
		func(r *Region) error {
			alive, _ := regions.Load(r)
			*alive.(*bool) = false
			runtime.Gosched()
			return d.deregister(r)
		})
	var wg sync.WaitGroup
	for seed := range uint64(goroutines) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 3))
			some := func() []byte {
				start := rnd.IntN(size)
				return d.array[start : start+1+rnd.IntN(min(256, size-start))]
			}
			for range rounds {
				switch rnd.IntN(16) {
				case 0:
					if c.forget(some()) != nil {
						t.Error("forget fails")
					}
					continue
				case 1:
					r := &Region{bytes: some()}
					regions.Store(r, new(true))
					if c.add(r) != nil {
						t.Error("add fails")
					}
					for !c.remove(t.Context(), r) {
						runtime.Gosched()
					}
					alive, _ := regions.Load(r)
					*alive.(*bool) = false
					continue
				}
				b := some()
				r, err := c.acquire(b, false)
				if errors.Is(err, syscall.ENOMEM) {
					continue
				}
				for range 3 {
					if err != nil || !contains(r.bytes, b) || !regions.isAlive(r) {
						t.Errorf("acquire returns %v, %v", r, err)
						return
					}
					runtime.Gosched()
				}
				c.release(r)
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.close())
	for r, alive := range d.alive {
		require.False(t, alive, "%v", within(d.array, r.bytes))
	}
	require.Empty(t, c.writable)
	require.Empty(t, c.readOnly)
	require.Empty(t, c.ending)
	require.Empty(t, c.pending)
	require.Zero(t, c.unused)
	require.Zero(t, c.size)
}

// full returns a cache of n regions, and the memory of each.
func full(t testing.TB, n int) (c *cache, parts [][]byte) {
	array := make([]byte, (n+1)*64)
	c = newCache(math.MaxInt64, func(b []byte) (*Region, error) { return &Region{bytes: b}, nil }, nil)
	for i := range n {
		b := array[i*64:][:64:64]
		parts = append(parts, b)
		require.NoError(t, c.add(&Region{bytes: b}))
	}
	return c, parts
}

func TestKnownMemoryAllocatesNothing(t *testing.T) {
	c, parts := full(t, 10_000)
	fresh := make([]byte, 64)
	r, err := c.acquire(fresh, false)
	require.NoError(t, err)
	c.release(r)
	i := 0
	for name, do := range map[string]func() []byte{
		"added":  func() []byte { i++; return parts[i*7919%len(parts)] },
		"cached": func() []byte { return fresh[10:20] },
	} {
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			r, err := c.acquire(do(), false)
			if err != nil {
				t.Error(err)
			}
			c.release(r)
		}), name)
	}
}

func BenchmarkCache(b *testing.B) {
	for _, n := range []int{1, 100, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, parts := full(b, n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r, _ := c.acquire(parts[i*7919%n], false)
				c.release(r)
			}
		})
	}
	b.Run("parallel", func(b *testing.B) {
		c, parts := full(b, 10_000)
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				r, _ := c.acquire(parts[i*7919%len(parts)], false)
				c.release(r)
			}
		})
	})
}

// The time for other memory does not grow with the number of regions.
func BenchmarkForget(b *testing.B) {
	for _, n := range []int{1, 100, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, parts := full(b, n)
			for i := 0; b.Loop(); i++ {
				_ = c.forget(parts[i*7919%n])
			}
		})
	}
}
