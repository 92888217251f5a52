// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
)

// If one connection hears of a device's removal before another does, requests
// of the other are not refused: neither at the end that has the device, nor by
// the peer.
func TestRemovalHeardBeforeTheEnd(t *testing.T) {
	if !testdevice.Soft() {
		t.Skip("needs packets that the test can drop")
	}
	for name, tt := range map[string]struct {
		gone func(*ends) *Engine
		read bool
	}{
		"here, write":  {func(e *ends) *Engine { return e.dialed.engine }, false},
		"here, read":   {func(e *ends) *Engine { return e.dialed.engine }, true},
		"there, write": {func(e *ends) *Engine { return e.accepted.engine }, false},
		"there, read":  {func(e *ends) *Engine { return e.accepted.engine }, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t, 2, false)
			softroce.SetFaults(func(p softroce.Packet) softroce.Fault {
				return softroce.Fault{Drop: p.Kind == softroce.KindWrite || p.Kind == softroce.KindReadRequest}
			})
			t.Cleanup(func() { softroce.SetFaults(nil) })
			b := e.dialed.NewBatch(1)
			fill := func() {
				b.Reset()
				if tt.read {
					require.NoError(t, b.Read(e.memory[:100], e.remote, 0))
				} else {
					require.NoError(t, b.Write(e.remote, 0, e.memory[:100]))
				}
				require.NoError(t, b.Submit(e.ctx))
			}
			fill()
			engine := tt.gone(e)
			d := engine.devices[0]
			old := d.domain
			require.False(t, engine.dropRemoved(d, old, errors.New("removed")), "connections use it")
			d.mu.Lock()
			require.NoError(t, engine.openDomain(d))
			d.mu.Unlock()
			softroce.SetFaults(nil)
			require.NoError(t, b.Wait(e.ctx))

			fill() // goes over a new connection, once there is one
			made := d.domain
			for _, p := range append(e.paths(e.dialed), e.paths(e.accepted)...) {
				p.session.peer.mu.Lock()
				p.fail(&rdmacm.EventError{Type: rdmacm.EventDeviceRemoval})
				p.session.peer.unlock()
			}
			require.NoError(t, b.Wait(e.ctx))
			cmtest.Soon(t, "the domain is freed", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return len(d.removed) == 0 && len(old.left) == 0 && d.domain == made
			})
		})
	}
}

// A region that is closed while a removed device still has connections is
// closed there, too.
func TestCloseOfRegionOnRemovedDevice(t *testing.T) {
	e := newEnds(t, 1, false)
	engine := e.dialed.engine
	region, err := engine.Alloc(4096, RegionConfig{})
	require.NoError(t, err)
	d := engine.devices[0]
	mr := region.mrs[0].Load().MR
	old := d.domain
	require.False(t, engine.dropRemoved(d, old, errors.New("removed")))
	require.Same(t, mr, old.left[region])
	require.Nil(t, region.mrs[0].Load())
	require.NoError(t, region.Close())
	require.NotContains(t, old.left, region)
	require.Nil(t, mr.Bytes(), "it is closed")
}

// A device that is removed and back at once has a new domain before all
// connections have heard of the removal. Those that hear of it late do not take
// the new domain from the others.
func TestDeviceBackAtOnce(t *testing.T) {
	need(t)
	if !testdevice.Soft() {
		t.Skip("needs a device that the test can remove")
	}
	t.Cleanup(func() { // lets go of the removed devices
		_, err := rdmacm.Devices()
		require.NoError(t, err)
	})
	r := newRig(t, Config{Devices: []string{"soft0"}, RetryTimeout: time.Minute})
	_, err := r.engine.Alloc(4096, RegionConfig{Name: "memory", Access: WriteAccess})
	require.NoError(t, err)
	engine, err := New(Config{Devices: []string{"soft0"}, Connections: 2, RetryTimeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	var peers []*Peer
	for range 24 {
		p, err := engine.Dial(r.ctx, r.at, DialConfig{})
		require.NoError(t, err)
		peers = append(peers, p)
		_, err = r.ln.Accept(r.ctx)
		require.NoError(t, err)
	}
	write := func(p *Peer) error {
		remote, err := p.Region(r.ctx, "memory")
		if err != nil {
			return err
		}
		b := p.NewBatch(1)
		return errors.Join(b.Write(remote, 0, make([]byte, 100)), b.Submit(r.ctx), b.Wait(r.ctx))
	}
	for range 2 {
		require.NoError(t, softroce.Remove())
		require.NoError(t, softroce.Insert())
		written := make(chan error)
		for _, p := range peers {
			go func() { written <- write(p) }()
		}
		for range peers {
			require.NoError(t, cmtest.Take(t, written, "a write"))
		}
	}
}

// A device on which a region cannot be registered is not used, and keeps
// nothing of the other regions. It is used once all can be registered.
func TestRegionThatReturnedDeviceRefuses(t *testing.T) {
	need(t)
	r := newRig(t, Config{})
	d, refuses := r.engine.devices[0], false
	var regions []*Region
	for range 10 {
		region, err := r.engine.Alloc(4096, RegionConfig{})
		require.NoError(t, err)
		regions = append(regions, region)
	}
	memory := make([]byte, 100)
	refused, err := r.engine.newRegion("test", &Region{
		config: RegionConfig{Name: "refused"}, bytes: memory, length: len(memory),
		register: func(pd *ibverbs.PD, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
			if refuses {
				return nil, syscall.ENOMEM
			}
			return pd.Register(memory, access)
		},
	})
	require.NoError(t, err)
	regions = append(regions, refused)
	require.True(t, r.engine.dropRemoved(d, d.domain, errors.New("removed")))
	opens := func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		return r.engine.openDomain(d)
	}
	before := ibverbs.OpenObjects()
	refuses = true
	for range 10 { // each in another order
		err := opens()
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.EqualError(t, err, `transfer: region "refused" of 100 bytes on device `+d.name+": cannot allocate memory")
		require.Nil(t, d.domain)
		require.Equal(t, before, ibverbs.OpenObjects())
		for _, region := range regions {
			require.Nil(t, region.mrs[d.index].Load())
		}
	}
	refuses = false
	require.NoError(t, opens())
	for _, region := range regions {
		require.NotNil(t, region.mrs[d.index].Load())
	}
	r.works()
}
