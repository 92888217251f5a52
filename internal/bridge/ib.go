// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"time"
)

// IB holds the functions that package rdmacm provides to package ib. An id is
// an *rdmacm.ID, an address an rdmacm.IBAddr, and flags are rdmacm.JoinFlags.
var IB struct {
	Bind       func(id, addr any) error
	Resolve    func(id, src, dst any, timeout time.Duration) error // src may be nil
	SetPaths   func(id, paths any) error                           // []rdmacm.IBPath
	Join       func(id, group, flags, value any) error
	Leave      func(id, group any) error
	LocalAddr  func(id any) (addr any)
	RemoteAddr func(id any) (addr any)
	JoinGroup  func(ctx context.Context, group, config any) (conn any, err error) // *rdmacm.GroupConfig, *rdmacm.DatagramConn
}
