// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
)

// tree returns a file system with files, given as lines "NAME: CONTENT". A node
// of memory is its distances, a device its node.
func tree(lines string) fstest.MapFS {
	files := fstest.MapFS{}
	for line := range strings.Lines(lines) {
		name, content, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if strings.HasPrefix(name, "node") {
			name = "devices/system/node/" + name + "/distance"
		} else {
			name = "class/infiniband/" + name + "/device/numa_node"
		}
		files[name] = &fstest.MapFile{Data: []byte(content + "\n")}
	}
	return files
}

// What the system tells of distances is used, and nothing that it tells is an
// error.
func TestFindNearer(t *testing.T) {
	two := map[int]*nearer{0: {0, 1 << 0}, 1: {1 << 1, 0}}
	for name, tt := range map[string]struct {
		files string
		want  map[int]*nearer
	}{
		"nothing":            {"", nil},
		"one node":           {"node0: 10\na: 0\nb: 0", nil},
		"two nodes":          {"node0: 10 21\nnode1: 21 10\na: 0\nb: 1", two},
		"devices at one":     {"node0: 10 21\nnode1: 21 10\na: 1\nb: 1", nil},
		"equally far":        {"node0: 10 10\nnode1: 10 10\na: 0\nb: 1", nil},
		"no devices of both": {"node0: 10 21\nnode1: 21 10", nil},
		"unknown":            {"node0: 10 21\nnode1: 21 10\na: -1\nb: -1", nil},
		"one known":          {"node0: 10 21\nnode1: 21 10\na: 0\nb: -1", nil},
		"one is in software": {"node0: 10 21\nnode1: 21 10\nb: 1", nil},
		"two of three known": {"node0: 10 21\nnode1: 21 10\na: 0\nb: 1\nc: -1", two},
		"three devices":      {"node0: 10 21\nnode1: 21 10\na: 0\nb: 1\nc: 1", map[int]*nearer{0: {0, 1 << 0, 1 << 0}, 1: {1<<1 | 1<<2, 0, 0}}},
		"memory alone": {
			"node0: 10 21 17\nnode1: 21 10 28\nnode2: 17 28 10\na: 0\nb: 1",
			map[int]*nearer{0: {0, 1 << 0}, 1: {1 << 1, 0}, 2: {0, 1 << 0}},
		},
		"levels": {
			"node0: 10 12 21\nnode1: 12 10 21\nnode2: 21 21 10\na: 0\nb: 1\nc: 2",
			map[int]*nearer{0: {0, 1 << 0, 1<<0 | 1<<1}, 1: {1 << 1, 0, 1<<0 | 1<<1}, 2: {1 << 2, 1 << 2, 0}},
		},
		"nodes that are missing":  {"node2: 10 21\nnode10: 21 10\na: 2\nb: 10", map[int]*nearer{2: {0, 1 << 0}, 10: {1 << 1, 0}}},
		"node of no memory":       {"node0: 10 21\nnode1: 21 10\na: 0\nb: 7", nil},
		"too few distances":       {"node0: 10\nnode1: 21 10\na: 0\nb: 1", map[int]*nearer{1: {1 << 1, 0}}},
		"too many distances":      {"node0: 10 21 21\nnode1: 21 10\na: 0\nb: 1", map[int]*nearer{1: {1 << 1, 0}}},
		"distance is no number":   {"node0: 10 far\nnode1: 21 10\na: 0\nb: 1", map[int]*nearer{1: {1 << 1, 0}}},
		"distances are too small": {"node0: 0 21\nnode1: 21 -1\na: 0\nb: 1", nil},
		"empty distance":          {"node0: \nnode1: \na: 0\nb: 1", nil},
		"node is no number":       {"node0: 10 21\nnode1: 21 10\na: zero\nb: 1", nil},
		"node is large":           {"node0: 10 21\nnode1: 21 10\na: 0\nb: 99999999999999999999", nil},
		"several nodes":           {"node0: 10 21\nnode1: 21 10\na: 0\nb: 0 1", nil},
		"other names":             {"node0: 10 21\nnode1: 21 10\nnode1x: 1\nnodes: 1\na: 0\nb: 1", two},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, findNearer(tree(tt.files), []*device{{name: "a"}, {index: 1, name: "b"}, {index: 2, name: "c"}}))
		})
	}
	require.Nil(t, findNearer(tree(""), nil))
}

// Devices are not looked for outside of sysfs' folder of them.
func TestFindNearerOfStrangeNames(t *testing.T) {
	require.Nil(t, findNearer(tree("node0: 10 21\nnode1: 21 10\na: 0\nb: 1"), []*device{{name: "../infiniband/a"}, {name: ""}}))
}

// A path leaves small requests to those of nearer devices, if they can take
// them at once.
func TestPathsLeaveRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(s *session, near *path, b *Batch)
		far    bool // whether the far path takes the request
	}{
		"idle":             {func(*session, *path, *Batch) {}, false},
		"last small size":  {func(_ *session, _ *path, b *Batch) { b.requests[0].n = minShare }, false},
		"first large size": {func(_ *session, _ *path, b *Batch) { b.requests[0].n = minShare + 1 }, true},
		"little in flight": {func(_ *session, near *path, _ *Batch) { near.bytes = minShare - 1 }, false},
		"much in flight":   {func(_ *session, near *path, _ *Batch) { near.bytes = minShare }, true},
		"little left":      {func(s *session, _ *path, _ *Batch) { s.up[0].left = minShare - 1 }, false},
		"much left":        {func(s *session, _ *path, _ *Batch) { s.up[0].left = minShare }, true},
		"no flight":        {func(_ *session, near *path, _ *Batch) { near.free = nil }, true},
		"posts":            {func(_ *session, near *path, _ *Batch) { near.posting = true }, false},
		"down":             {func(s *session, _ *path, _ *Batch) { s.up = s.up[:1] }, true},
		"none":             {func(_ *session, _ *path, b *Batch) { b.requests[0].local.nearer = nil }, true},
		"same distance":    {func(_ *session, _ *path, b *Batch) { b.requests[0].local.nearer = &nearer{} }, true},
		"further":          {func(_ *session, _ *path, b *Batch) { b.requests[0].local.nearer = &nearer{1: 1 << 0} }, true},
		"no region here":   {func(_ *session, near *path, b *Batch) { b.requests[0].local.mrs[near.local.index].Store(nil) }, true},
		"other domain":     {func(_ *session, near *path, _ *Batch) { near.domain = new(domain) }, true},
		"no region there":  {func(_ *session, near *path, b *Batch) { b.requests[0].remote.offer.keys[near.remote].there = false }, true},
		"batch has begun":  {func(s *session, _ *path, b *Batch) { b.firstPath = s.up[0] }, true},
		"began elsewhere":  {func(_ *session, near *path, b *Batch) { b.firstPath = near }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := lone(t)
			require.NoError(t, handle(t, s, offered(func(o *offer) { o.length, o.access = 1<<20, ReadAccess })))
			local := &Region{length: 1 << 20, nearer: &nearer{1 << 1, 0}}
			s.peer.engine.devices = []*device{{index: 0}, {index: 1}}
			s.peer.perDevice = make([]DeviceStats, 2)
			remote := s.names["name"]
			for i, d := range s.peer.engine.devices {
				p, err := newPath(s, uint32(i), d, new(domain), func() {})
				require.NoError(t, err)
				p.remote = uint8(i)
				remote.offer.keys[i] = key{there: true}
				local.mrs[i].Store(&registration{domain: p.domain})
				s.up = append(s.up, p)
			}
			s.countDevices()
			far, near := s.up[0], s.up[1]
			b := s.peer.NewBatch(1)
			b.requests = append(b.requests, request{local: local, remote: remote, n: 4096})
			tt.change(s, near, b)
			var got slice
			ok, more := b.issue(far, &got)
			require.Equal(t, tt.far, ok)
			if !ok {
				require.True(t, more)
				ok, _ = b.issue(near, &got)
				require.True(t, ok)
			}
			require.Same(t, b, got.batch)
		})
	}
}

// If three devices are at three distances, the nearest with room has a request.
func TestNearestPathHasRequests(t *testing.T) {
	s := &session{}
	r := &request{n: 1, local: &Region{nearer: &nearer{0, 1 << 0, 1<<0 | 1<<1}}, remote: &RemoteRegion{session: s}}
	for i := range 3 {
		p := &path{session: s, local: &device{index: i}, domain: new(domain), free: []*flight{{}}}
		r.local.mrs[i].Store(&registration{domain: p.domain})
		s.up = append(s.up, p)
	}
	r.remote.offer.keys[0].there = true
	leave := func() (all [3]bool) {
		for i, p := range s.up {
			all[i] = p.leaves(r)
		}
		return all
	}
	require.Equal(t, [3]bool{false, true, true}, leave())
	s.up[0].free = nil
	require.Equal(t, [3]bool{false, false, true}, leave())
	s.up[1].free = nil
	require.Equal(t, [3]bool{false, false, false}, leave())
}

// setNearer makes a device the nearest one to all memory that is registered
// from then on. It is called before the engine has a peer.
func (e *Engine) setNearer(device int) {
	n := new(nearer)
	for i := range e.devices {
		if i != device {
			n[i] = 1 << device
		}
	}
	e.nearer = map[int]*nearer{-1: n} // where the system does not tell
	for i := range 64 {
		e.nearer[i] = n
	}
}

// twoDevices returns two peers that have a path over each of the two devices in
// user space. The dialer's device soft1 is nearer to its memory.
func twoDevices(t *testing.T) *ends {
	t.Helper()
	need(t)
	if !testdevice.Soft() {
		t.Skip("needs two devices, which the test can remove")
	}
	t.Cleanup(func() { // lets go of removed devices
		_, err := rdmacm.Devices()
		require.NoError(t, err)
	})
	r := newRig(t, Config{RetryTimeout: time.Hour})
	_, err := r.engine.Alloc(16<<20, RegionConfig{Name: "memory", Access: ReadAccess | WriteAccess})
	require.NoError(t, err)
	a, err := New(Config{RetryTimeout: time.Hour})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	a.setNearer(1)
	e := &ends{t: t, ctx: r.ctx}
	e.dialed, err = a.Dial(r.ctx, r.at, DialConfig{})
	require.NoError(t, err)
	e.accepted, err = r.ln.Accept(r.ctx)
	require.NoError(t, err)
	e.remote, err = e.dialed.Region(r.ctx, "memory")
	require.NoError(t, err)
	local, err := a.Alloc(16<<20, RegionConfig{})
	require.NoError(t, err)
	e.memory = local.Bytes()
	e.awaitPaths(2)
	return e
}

func (e *ends) awaitPaths(n int) {
	e.t.Helper()
	cmtest.Soon(e.t, "the connections are up", func() bool {
		paths := e.paths(e.dialed)
		e.dialed.mu.Lock()
		defer e.dialed.mu.Unlock()
		hasKey := func(p *path) bool { // it comes by another connection
			k := e.remote.offer.keys[p.remote]
			return k.there && k.generation == p.generation
		}
		return len(paths) == n && len(e.paths(e.accepted)) == n && !slices.ContainsFunc(paths, func(p *path) bool { return !hasKey(p) })
	})
}

// moved returns the bytes that each device has moved for the dialer.
func (e *ends) moved() (all [2]uint64) {
	for i, d := range e.dialed.Stats().Devices {
		all[i] = d.Read + d.Written
	}
	return all
}

// Small requests go by the near device, large ones by both. While the near
// device is gone, the far one has all.
func TestNearDevice(t *testing.T) {
	e := twoDevices(t)
	require.Equal(t, [2]uint64{0, 100 * 4096}, e.move(100, 4096))
	require.Equal(t, [2]uint64{0, 3 * minShare}, e.move(3, minShare))
	moved := e.move(10, 1<<20)
	require.NotZero(t, moved[0])
	require.NotZero(t, moved[1])
	card, err := softroce.FindCard("soft1")
	require.NoError(t, err)
	require.NoError(t, card.Remove())
	e.awaitPaths(1)
	require.Equal(t, [2]uint64{20 * 4096, 0}, e.move(20, 4096))
	require.NoError(t, card.Insert())
	e.awaitPaths(2)
	require.Equal(t, [2]uint64{0, 20 * 4096}, e.move(20, 4096))
	require.NoError(t, card.SetPort(false))
	require.Equal(t, [2]uint64{20 * 4096, 0}, e.move(20, 4096))
	require.NoError(t, card.SetPort(true))
	e.awaitPaths(2)
}

// move writes or reads n bytes that many times, and returns how many bytes each
// device has moved.
func (e *ends) move(times, n int) [2]uint64 {
	e.t.Helper()
	before := e.moved()
	for i := range times {
		b := e.dialed.NewBatch(1)
		if i%2 == 0 {
			require.NoError(e.t, b.Write(e.remote, 0, e.memory[:n]))
		} else {
			require.NoError(e.t, b.Read(e.memory[:n], e.remote, 0))
		}
		e.carryOut(b)
	}
	after := e.moved()
	return [2]uint64{after[0] - before[0], after[1] - before[1]}
}

// A far path leaves no more requests than the near one posts in one call.
func TestFarPathLeavesLittle(t *testing.T) {
	e := twoDevices(t)
	local, err := e.dialed.engine.Alloc(4096, RegionConfig{})
	require.NoError(t, err)
	paths := e.paths(e.dialed)
	near := paths[slices.IndexFunc(paths, func(p *path) bool { return p.local.index == 1 })]
	posts := func(on bool) {
		e.dialed.mu.Lock()
		defer e.dialed.mu.Unlock()
		near.posting = on
	}
	posts(true)
	const few = 3
	var all []*Batch
	for range maxFlightSlices + few {
		b := e.dialed.NewBatch(1)
		require.NoError(t, b.WriteRegion(e.remote, 0, local, 0, 64))
		require.NoError(t, b.Submit(e.ctx))
		all = append(all, b)
	}
	cmtest.Soon(t, "the far path has taken some", func() bool { return e.moved() == [2]uint64{few * 64, 0} })
	posts(false)
	near.postAll()
	for _, b := range all {
		require.NoError(t, b.Wait(e.ctx))
	}
	require.Equal(t, [2]uint64{few * 64, maxFlightSlices * 64}, e.moved())
}

// A far path takes what it has left to a near one when that ends, or has no
// more room.
func TestFarPathIsNotForgotten(t *testing.T) {
	for name, act := range map[string]func(p *Peer, near *path){
		"end": func(p *Peer, near *path) {
			p.mu.Lock()
			defer p.mu.Unlock()
			near.fail(errors.New("transfer: the test"))
		},
		"no room": func(p *Peer, near *path) {
			p.mu.Lock()
			free := near.free
			near.free = nil
			p.mu.Unlock()
			near.postAll() // as after a flight
			p.mu.Lock()
			near.free = free
			p.mu.Unlock()
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := twoDevices(t)
			for ln := range e.accepted.engine.listeners {
				require.NoError(t, ln.Close()) // no other connection is made
			}
			var near *path
			for _, p := range e.paths(e.dialed) {
				if p.local.index == 1 {
					near = p
				}
			}
			setPosting := func(on bool) {
				e.dialed.mu.Lock()
				defer e.dialed.mu.Unlock()
				near.posting = on
			}
			setPosting(true) // so that it takes nothing
			b := e.batch(100, false)
			require.NoError(t, b.Submit(e.ctx))
			e.dialed.mu.Lock()
			require.Nil(t, b.firstPath, "the far path has left it")
			e.dialed.mu.Unlock()
			act(e.dialed, near)
			require.NoError(t, b.Wait(e.ctx))
			require.Equal(t, [2]uint64{100, 0}, e.moved())
			setPosting(false)
		})
	}
}

// Batches of many goroutines, of all sizes and with memory that is near to
// either device, are carried out while connections end.
func TestNearDevicesUnderLoad(t *testing.T) {
	e := twoDevices(t)
	engine := e.dialed.engine
	var regions []*Region
	for device := range 2 {
		r, err := engine.Alloc(1<<20, RegionConfig{})
		require.NoError(t, err)
		r.nearer = new(nearer)
		r.nearer[1-device] = 1 << device
		regions = append(regions, r)
	}
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			b := e.dialed.NewBatch(40)
			for round := range 20 {
				b.Reset()
				for j := range 1 + (i*7+round)%40 {
					n := 1 + (i*31+round*17+j*5)%64<<(j%13)
					assert.NoError(t, b.WriteRegion(e.remote, uint64(i)<<20, regions[(i+j*round)%2], 0, n))
				}
				if paths := e.paths(e.dialed); i == 0 && round%5 == 4 && len(paths) > 0 {
					assert.NoError(t, paths[0].conn.Close())
				}
				if err := errors.Join(b.Submit(e.ctx), b.Wait(e.ctx)); err != nil {
					t.Errorf("batch %d of goroutine %d: %v", round, i, err)
					return
				}
			}
		})
	}
	running.Wait()
	moved := e.moved()
	require.NotZero(t, moved[0])
	require.NotZero(t, moved[1])
}
