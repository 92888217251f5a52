// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"sync"

	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket"
)

// The first byte on a socket.
const (
	SendBack byte = 'b' // the server sends everything back
	CheckSum byte = 's' // the server sends the CRC-32 of everything when it has seen the end
)

// sockets listens for rsockets.
func (v *visit) sockets(_ *rdmacm.Request, local string, _ byte) (service, error) {
	ln, err := (&rsocket.ListenConfig{Config: rsocket.Config{KeepAlive: vanished}}).Listen(v.ctx, "rdma", local)
	if err != nil {
		return service{}, err
	}
	run := func(ctx context.Context) {
		var open sync.WaitGroup
		defer open.Wait()
		for {
			conn, err := ln.Accept()
			if err != nil {
				return // the service ends
			}
			open.Go(func() {
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				defer stop()
				defer conn.Close()
				_ = answerSocket(conn)
			})
		}
	}
	return service{ln.Addr().(rsocket.Addr).AddrPort, run, ln.Close}, nil
}

func answerSocket(conn net.Conn) error {
	var kind [1]byte
	if _, err := io.ReadFull(conn, kind[:]); err != nil {
		return err
	}
	if kind[0] == SendBack {
		if _, err := io.Copy(conn, conn); err != nil {
			return err
		}
		return conn.(interface{ CloseWrite() error }).CloseWrite()
	}
	sum := crc32.NewIEEE()
	if _, err := io.Copy(sum, conn); err != nil {
		return err
	}
	_, err := conn.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	return err
}
