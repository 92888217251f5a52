// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/rdmacm"
)

func (o *options) runClient(ctx context.Context, hints rdmacm.AddrInfo) (err error) {
	o.out.Printf("udaddy: starting client\n")
	if o.bind != "" {
		source := hints
		source.Flags |= rdmacm.AddrPassive
		infos, err := rdmacm.GetAddrInfo(ctx, o.bind, "", &source)
		if err != nil {
			return err
		}
		hints.Src, hints.SrcIB = infos[0].Src, infos[0].SrcIB
	}
	infos, err := rdmacm.GetAddrInfo(ctx, o.server, port, &hints)
	if err != nil {
		return err
	}
	o.out.Printf("udaddy: connecting\n")
	ends := o.ends()
	defer closeAll(ends, &err)
	dialer := rdmacm.Dialer{TOS: o.tos}
	for _, e := range ends {
		if _, err := dialer.DialDatagramInfo(ctx, infos[0], o.config(e)); err != nil {
			return err
		}
	}
	if o.count == 0 {
		return nil
	}
	o.out.Printf("initiating data transfers\n")
	for _, e := range ends {
		if err := e.Send(ctx, e.Conn.Peer()); err != nil {
			return err
		}
	}
	o.out.Printf("receiving data transfers\n")
	for _, e := range ends {
		from, err := e.Receive(ctx)
		if err != nil {
			return err
		}
		if want := e.Conn.Peer().QPNum; from.QPNum != want {
			return fmt.Errorf("answer from QP %d instead of QP %d", from.QPNum, want)
		}
	}
	o.out.Printf("data transfers complete\n")
	return nil
}

func (o *options) runServer(ctx context.Context, hints rdmacm.AddrInfo) (err error) {
	o.out.Printf("udaddy: starting server\n")
	hints.Flags |= rdmacm.AddrPassive
	infos, err := rdmacm.GetAddrInfo(ctx, o.bind, port, &hints)
	if err != nil {
		return err
	}
	ln, err := rdmacm.ListenDatagramInfo(ctx, infos[0], nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ln.Close()) }()
	ends := o.ends()
	defer closeAll(ends, &err)
	for _, e := range ends {
		req, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		if _, err := req.Accept(ctx, o.config(e)); err != nil {
			return err
		}
	}
	if o.count == 0 {
		return nil
	}
	o.out.Printf("receiving data transfers\n")
	peers := make([]rdmacm.Peer, len(ends)) // the senders of the messages
	for i, e := range ends {
		if peers[i], err = e.Receive(ctx); err != nil {
			return err
		}
	}
	o.out.Printf("sending replies\n")
	for i, e := range ends {
		if err := e.Send(ctx, peers[i]); err != nil {
			return err
		}
	}
	o.out.Printf("data transfers complete\n")
	return nil
}

// closeAll closes those ends that exist, and adds errors to *err.
func closeAll(ends []*peers.End, err *error) {
	for _, e := range ends {
		if e.Conn != nil {
			*err = errors.Join(*err, e.Conn.Close())
		}
	}
}
