package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/verbena-go/verbena/internal/cerr"
)

// DialDatagram asks a datagram listener at host:port for its queue pair, with
// the zero Dialer.
func DialDatagram(ctx context.Context, address string, config *DatagramConfig) (*DatagramConn, error) {
	return new(Dialer).DialDatagram(ctx, address, config)
}

// DialDatagram asks a datagram listener at host:port for its queue pair. It
// returns when the peer has accepted, or with a *RejectedError if the peer
// refuses, an *EventError if it cannot be reached, or an error that is
// ctx.Err(). If the host has several addresses, they are tried in turn. The
// config may be nil.
//
// That a host does not answer at all is known only after a minute, so give ctx a
// deadline.
func (d *Dialer) DialDatagram(ctx context.Context, address string, config *DatagramConfig) (*DatagramConn, error) {
	if d == nil {
		return nil, cerr.Nil("Dialer.DialDatagram", "dialer")
	}
	if err := ended("DialDatagram", ctx); err != nil {
		return nil, err
	}
	complete := config.withDefaults()
	var conn *DatagramConn
	err := d.each(ctx, address, func(local, peer netip.AddrPort) (err error) {
		conn, err = d.dialDatagram(ctx, AddrInfo{PortSpace: PortSpaceUDP, Src: local, Dst: peer}, complete)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

func (d *Dialer) dialDatagram(ctx context.Context, info AddrInfo, config DatagramConfig) (*DatagramConn, error) {
	ds, id, err := d.resolved(ctx, info, 0)
	if err != nil {
		return nil, err
	}
	conn, err := newDatagramConn(ds, id, config, 0)
	if err != nil {
		return nil, err
	}
	if err := conn.connect(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// connect gets to know the peer's queue pair.
func (c *DatagramConn) connect(ctx context.Context) error {
	ev, err := c.ask(ctx, func() error { return c.id.Connect(ConnParam{PrivateData: c.config.PrivateData}) })
	if err != nil {
		return err
	}
	c.peerData, c.local, c.remote = ev.PrivateData, c.id.LocalAddr(), c.id.RemoteAddr()
	return c.setPeer(ctx, Peer{Path: ev.Path, QPNum: ev.QPNum, QKey: ev.QKey})
}
