package rping

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/verbena-go/verbena/rdmacm"
)

func runClient(ctx context.Context, o *options) (err error) {
	l := &link{o: o}
	conn, err := (&rdmacm.Dialer{LocalAddr: o.source, TOS: uint8(o.tos)}).Dial(ctx, o.dialAddress(), l.config())
	if err != nil {
		return err
	}
	o.debugf("connected %v to %v", conn.LocalAddr(), conn.RemoteAddr())
	defer func() { err = errors.Join(err, l.conn.Close()) }()
	for ping := 0; o.count == 0 || ping < o.count; ping++ {
		if err := l.ping(ctx, ping); err != nil {
			return fmt.Errorf("ping %d: %w", ping, err)
		}
	}
	return nil
}

// ping has the server read the text and write it back.
func (l *link) ping(ctx context.Context, n int) error {
	start, data := l.start.Bytes(), l.data.Bytes()
	fill(start, n)
	if err := l.send(ctx, l.start.Remote()); err != nil {
		return err
	}
	if _, err := l.receive(ctx); err != nil {
		return err
	}
	if err := l.send(ctx, l.data.Remote()); err != nil {
		return err
	}
	if _, err := l.receive(ctx); err != nil {
		return err
	}
	if l.o.validate && !bytes.Equal(start, data) {
		return errors.New("data mismatch")
	}
	if l.o.verbose {
		fmt.Fprintf(l.o.out.Stdout, "ping data: %s\n", text(data))
	}
	return nil
}

// fill writes a text that ends with a zero and differs from ping to ping.
func fill(b []byte, n int) {
	const first, last = 'A', 'z'
	head := copy(b, fmt.Sprintf("rdma-ping-%d: ", n))
	for i := head; i < len(b)-1; i++ {
		b[i] = byte(first + (n+i-head)%(last-first+1))
	}
	b[len(b)-1] = 0
}

// text returns what comes before the first zero.
func text(b []byte) []byte {
	before, _, _ := bytes.Cut(b, []byte{0})
	return before
}
