package rping

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/verbena-go/verbena/rdmacm"
)

func runServer(ctx context.Context, o *options) (err error) {
	ln, err := rdmacm.Listen(ctx, o.dialAddress(), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ln.Close()) }()
	o.debugf("listening on %v", ln.Addr())
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		if !o.persistent {
			return serve(ctx, o, req)
		}
		clients.Go(func() {
			peer := req.RemoteAddr()
			if err := serve(ctx, o, req); err != nil && ctx.Err() == nil {
				fmt.Fprintf(o.out.Stderr, "rping: client %v: %v\n", peer, err)
			}
		})
	}
}

// serve answers one client's pings until it disconnects.
func serve(ctx context.Context, o *options, req *rdmacm.Request) (err error) {
	l := &link{o: o}
	if _, err := req.Accept(ctx, l.config()); err != nil {
		return err
	}
	o.debugf("accepted %v", l.conn.RemoteAddr())
	defer func() { err = errors.Join(err, l.conn.Close()) }()
	for {
		err := l.answer(ctx)
		var ended *rdmacm.EventError
		if errors.As(err, &ended) && ended.Type == rdmacm.EventDisconnected {
			fmt.Fprintln(o.out.Stderr, "server DISCONNECT EVENT...")
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// answer reads a ping from the client and writes it back.
func (l *link) answer(ctx context.Context) error {
	source, err := l.receive(ctx)
	if err != nil {
		return err
	}
	if source.Len > uint64(l.data.Len()) {
		return fmt.Errorf("the client offers %d bytes, more than %d", source.Len, l.data.Len())
	}
	if err := l.conn.Read(ctx, l.data.Sub(0, int(source.Len)), source); err != nil {
		return err
	}
	ping := text(l.data.Bytes()[:source.Len])
	l.o.debugf("read %d bytes", source.Len)
	if l.o.verbose {
		fmt.Fprintf(l.o.out.Stdout, "server ping data: %s\n", ping)
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
	l.o.debugf("wrote %d bytes", len(ping)+1)
	return l.send(ctx, l.data.Remote())
}
