// SPDX-License-Identifier: Apache-2.0

package engine

import (
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

// CreateAH makes an address handle. It fails with EINVAL for a port that does
// not exist, a missing global route, a flow label or service level out of
// range, and a destination that is zero or of another family than the source.
// It fails with ENODATA if the entry of the GID table is empty, and with ENOMEM
// if there are too many handles.
func (p *PD) CreateAH(attr *libibverbs.AhAttr) (*AH, error) {
	d := p.device
	if err := d.check(); err != nil {
		return nil, err
	}
	path, err := d.pathOf(attr)
	if err != nil {
		return nil, err
	}
	if len(d.ahs) == maxAHs {
		return nil, syscall.ENOMEM
	}
	d.nextAH++
	a := &AH{pd: p, handle: d.nextAH, path: path}
	d.ahs[a.handle] = a
	p.users++
	return a, nil
}

// Handle returns the number that names the address handle in work requests. The
// device never gives it to another handle.
func (a *AH) Handle() uint64 { return a.handle }

// Destroy removes the handle. Datagrams posted to it before are still sent,
// since drivers copy the path when a datagram is posted. Only the work requests
// of a queue pair that is draining fail, when it resumes.
func (a *AH) Destroy() error {
	a.pd.device.schedule.sendDatagrams(a.pd)
	delete(a.pd.device.ahs, a.handle)
	a.pd.users--
	return nil
}

// path is the route of packets, from a queue pair or to the destination of an
// address handle.
type path struct {
	sgid, dgid   wire.GID
	flowLabel    uint32
	trafficClass uint8
	hopLimit     uint8
}

const (
	maxSL           = 15
	maxFlowLabel    = 1<<20 - 1
	defaultHopLimit = 64
)

// pathOf returns the path that attr describes.
func (d *Device) pathOf(attr *libibverbs.AhAttr) (path, error) {
	g := &attr.Grh
	if attr.PortNum != 1 || attr.IsGlobal == 0 || int(g.SgidIndex) >= len(d.gids) ||
		attr.Sl > maxSL || g.FlowLabel > maxFlowLabel {
		return path{}, syscall.EINVAL
	}
	p := path{
		sgid: d.gids[g.SgidIndex].GID, dgid: wire.GID(*g.Dgid.Raw()),
		flowLabel: g.FlowLabel, trafficClass: g.TrafficClass, hopLimit: g.HopLimit,
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
