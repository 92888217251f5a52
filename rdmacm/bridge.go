// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"time"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/bridge"
)

// init gives packages endpoint, handled and ib access to this package's
// internals.
func init() {
	bridge.IB.Bind = func(id, addr any) error { return id.(*ID).bindIB(addr.(IBAddr)) }
	bridge.IB.Resolve = func(id, src, dst any, timeout time.Duration) error {
		return id.(*ID).resolveIB(src.(*IBAddr), dst.(IBAddr), timeout)
	}
	bridge.IB.SetPaths = func(id, paths any) error { return id.(*ID).setIBPaths(paths.([]IBPath)) }
	bridge.IB.Join = func(id, group, flags, value any) error {
		return id.(*ID).joinIB(group.(IBAddr), flags.(JoinFlags), value)
	}
	bridge.IB.Leave = func(id, group any) error { return id.(*ID).leaveIB(group.(IBAddr)) }
	bridge.IB.LocalAddr = func(id any) any { return address(id.(*ID), librdmacm.GetLocalAddr, ibAddr) }
	bridge.IB.RemoteAddr = func(id any) any { return address(id.(*ID), librdmacm.GetPeerAddr, ibAddr) }
	bridge.IB.JoinGroup = func(ctx context.Context, group, config any) (any, error) {
		return joinGroupIB(ctx, group.(IBAddr), config.(*GroupConfig))
	}
}
