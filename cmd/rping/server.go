// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/verbena-go/verbena/rdmacm"
)

func (o *options) listen(ctx context.Context, address string) (err error) {
	o.size = maxSize + 1 // clients choose the size
	ln, err := rdmacm.Listen(ctx, address, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ln.Close()) }()
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		if !o.persistent {
			return o.serve(ctx, req)
		}
		clients.Go(func() {
			peer := req.RemoteAddr()
			if err := o.serve(ctx, req); err != nil && ctx.Err() == nil {
				fmt.Fprintf(o.out.Stderr, "rping: client %v: %v\n", peer, err)
			}
		})
	}
}

// serve answers one client's pings until it disconnects.
func (o *options) serve(ctx context.Context, req *rdmacm.Request) error {
	l := &link{options: o}
	conn, err := req.Accept(ctx, l.config())
	if err != nil {
		return err
	}
	for err == nil {
		err = l.answer(ctx)
	}
	if ended, ok := errors.AsType[*rdmacm.EventError](err); ok && ended.Type == rdmacm.EventDisconnected {
		fmt.Fprintln(o.out.Stderr, "server DISCONNECT EVENT...")
		err = nil
	}
	return errors.Join(err, conn.Close())
}

// answer reads a ping from the client and writes it back.
func (l *link) answer(ctx context.Context) error {
	source, err := l.receive(ctx)
	if err != nil {
		return err
	}
	if err := l.conn.Read(ctx, l.data.Sub(0, int(source.Len)), source); err != nil {
		return err
	}
	ping, _, _ := bytes.Cut(l.data.Bytes()[:source.Len], []byte{0})
	if l.verbose {
		l.out.Printf("server ping data: %s\n", ping)
	}
	if err := l.send(ctx, l.data.Remote()); err != nil {
		return err
	}
	sink, err := l.receive(ctx)
	if err != nil {
		return err
	}
	if err := l.conn.Write(ctx, sink, l.data.Sub(0, min(len(ping)+1, l.data.Len()))); err != nil {
		return err
	}
	return l.send(ctx, l.data.Remote())
}
