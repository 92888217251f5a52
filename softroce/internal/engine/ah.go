// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// AH is an address handle.
type AH struct {
	pd     *PD
	handle uint64
	path   path
}

// CreateAH creates an address handle. It fails with EINVAL if attr has a port
// that does not exist, no global route, a service level out of range, or a
// destination that is zero or of another address family than the source. It
// fails with ENODATA if the entry of the GID table is empty, with ENOMEM if the
// device has too many handles, and with EOPNOTSUPP if it has none.
func (p *PD) CreateAH(attr *libibverbs.AhAttr) (*AH, error) {
	d := p.device
	if err := d.check(); err != nil {
		return nil, err
	}
	if d.limits.AHs == 0 {
		return nil, syscall.EOPNOTSUPP
	}
	path, err := d.pathOf(attr)
	if err != nil {
		return nil, err
	}
	if len(d.ahs) == int(d.limits.AHs) {
		return nil, syscall.ENOMEM
	}
	a := &AH{pd: p, handle: lastAH.Add(1), path: path}
	d.ahs[a.handle] = a
	p.users++
	return a, nil
}

// lastAH is the handle of the newest address handle of all devices. A request
// that names one of another device fails, rather than find another address.
var lastAH atomic.Uint64

// Handle returns the number by which work requests name the address handle. No
// device of the process reuses it.
func (a *AH) Handle() uint64 { return a.handle }

// Destroy removes the handle. Datagrams that were posted with it are still
// sent, since drivers of hardware copy the address when a datagram is posted.
// The exception is a queue pair in the state SQD: its datagrams fail when it
// resumes.
func (a *AH) Destroy() error {
	a.pd.device.schedule.sendDatagrams(a.pd)
	delete(a.pd.device.ahs, a.handle)
	a.pd.users--
	return nil
}

// path has the addresses and IP header fields of packets to a connected peer or
// to the destination of an address handle.
type path struct {
	sgid, dgid   wire.GID
	flowLabel    uint32
	trafficClass uint8
	hopLimit     uint8
}

const (
	maxSL           = 15
	flowLabelMask   = 1<<20 - 1
	defaultHopLimit = 64
)

// pathOf returns the path for attr. It fails like CreateAH.
func (d *Device) pathOf(attr *libibverbs.AhAttr) (path, error) {
	g := &attr.Grh
	if attr.PortNum != 1 || attr.IsGlobal == 0 || int(g.SgidIndex) >= len(d.gids) ||
		attr.Sl > maxSL {
		return path{}, syscall.EINVAL
	}
	p := path{
		sgid: d.gids[g.SgidIndex].GID, dgid: wire.GID(*g.Dgid.Raw()),
		// Drivers ignore the other bits, which UCX sets.
		flowLabel: g.FlowLabel & flowLabelMask, trafficClass: g.TrafficClass, hopLimit: g.HopLimit,
	}
	if p.sgid == (wire.GID{}) {
		return path{}, noData
	}
	if p.dgid == (wire.GID{}) || p.dgid.Is4() != p.sgid.Is4() {
		return path{}, syscall.EINVAL
	}
	if p.hopLimit == 0 {
		p.hopLimit = defaultHopLimit
	}
	return p, nil
}
