// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/softroce"
)

// If one connection hears of a device's removal before another does, requests
// of the other are not refused: neither at the end that has the device, nor by
// the peer.
func TestRemovalHeardBeforeTheEnd(t *testing.T) {
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
			require.False(t, engine.dropRemoved(d, errors.New("removed"), true), "connections use it")
			d.mu.Lock()
			require.NoError(t, engine.openDomain(d))
			d.mu.Unlock()
			softroce.SetFaults(nil)
			require.NoError(t, b.Wait(e.ctx))

			fill() // goes over a new connection, once there is one
			for _, p := range append(e.paths(e.dialed), e.paths(e.accepted)...) {
				p.session.peer.mu.Lock()
				p.fail(errors.New("heard of the removal"))
				p.session.peer.unlock()
			}
			require.NoError(t, b.Wait(e.ctx))
			cmtest.Soon(t, "the domain is freed", func() bool {
				d.mu.Lock()
				defer d.mu.Unlock()
				return len(d.removed) == 0 && len(old.left) == 0
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
	require.False(t, engine.dropRemoved(d, errors.New("removed"), true))
	require.Same(t, mr, old.left[region])
	require.Nil(t, region.mrs[0].Load())
	require.NoError(t, region.Close())
	require.NotContains(t, old.left, region)
	require.Nil(t, mr.Bytes(), "it is closed")
}
