// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

func (o *options) dial(ctx context.Context, address string) (err error) {
	l := &link{options: o}
	conn, err := (&rdmacm.Dialer{Config: *l.config(), LocalAddr: o.source, TOS: uint8(o.tos)}).Dial(ctx, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for n := 0; o.count == 0 || n < o.count; n++ {
		if err := l.ping(ctx, n); err != nil {
			return fmt.Errorf("ping %d: %w", n, err)
		}
	}
	return nil
}

// ping makes the server read the text and write it back.
func (l *link) ping(ctx context.Context, n int) error {
	fill(l.start.Bytes(), n)
	for _, buffer := range []*ibverbs.MR{l.start, l.data} {
		if err := l.send(ctx, buffer.Remote()); err != nil {
			return err
		}
		if _, err := l.receive(ctx); err != nil {
			return err
		}
	}
	if l.validate && !bytes.Equal(l.start.Bytes(), l.data.Bytes()) {
		return errors.New("the server wrote back other data than was sent")
	}
	if l.verbose {
		l.out.Printf("ping data: %s\n", bytes.TrimRight(l.data.Bytes(), "\x00"))
	}
	return nil
}

// fill fills b with the text of ping n, which ends with a zero and differs from
// the text of other pings.
func fill(b []byte, n int) {
	head := copy(b, fmt.Sprintf("rdma-ping-%d: ", n))
	for i := head; i < len(b)-1; i++ {
		b[i] = byte('A' + (n+i-head)%('z'-'A'+1))
	}
	b[len(b)-1] = 0
}
