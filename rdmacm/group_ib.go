package rdmacm

import (
	"context"
	"fmt"

	"github.com/verbena-go/verbena/internal/cerr"
)

// JoinGroupIB is JoinGroup for an address of InfiniBand's own: the group's GID
// as it is, instead of the one that an IP address stands for. The config must
// have a LocalAddr, because there are no routes to such an address.
func JoinGroupIB(ctx context.Context, group IBAddr, config *GroupConfig) (*DatagramConn, error) {
	if err := ended("JoinGroupIB", ctx); err != nil {
		return nil, err
	}
	conn, err := config.joinIB(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", group.GID, err)
	}
	return conn, nil
}

func (c *GroupConfig) joinIB(ctx context.Context, group IBAddr) (*DatagramConn, error) {
	if c == nil || c.LocalAddr == "" {
		return nil, cerr.Refuse("rdma_bind_addr", "", "GroupConfig.LocalAddr is needed")
	}
	local, err := lookupLocal(ctx, c.LocalAddr)
	if err != nil {
		return nil, err
	}
	return c.joinFrom(local.Addr(), func(conn *DatagramConn) error {
		conn.local = conn.id.LocalAddr()
		ev, err := conn.ask(ctx, func() error { return conn.id.JoinMulticastIB(group, c.joinFlags(), nil) })
		if err != nil {
			return err
		}
		return conn.joined(ctx, ev)
	})
}
