// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/verbena-go/verbena/internal/cerr"
)

// A DatagramListener accepts requests from peers that want to send datagrams to
// this host. Its methods may be called concurrently.
type DatagramListener struct{ listener *Listener }

// ListenDatagram listens for datagram requests at host:port. It treats the
// address as Listen does, but its ports are separate from those of Listen. The
// config may be nil.
func ListenDatagram(ctx context.Context, address string, config *ListenConfig) (*DatagramListener, error) {
	if err := ended("ListenDatagram", ctx); err != nil {
		return nil, err
	}
	ln, err := config.listen(ctx, PortSpaceUDP, address)
	if err != nil {
		return nil, fmt.Errorf("listen for datagrams on %s: %w", address, err)
	}
	return &DatagramListener{ln}, nil
}

// Addr returns the listener's address.
func (ln *DatagramListener) Addr() netip.AddrPort { return ln.self().Addr() }

// Accept waits for a request. The caller must accept or reject the request,
// which also releases its resources. Accept returns an error matching ctx.Err()
// when ctx ends, and one matching os.ErrClosed when the listener is closed.
func (ln *DatagramListener) Accept(ctx context.Context) (*DatagramRequest, error) {
	req, err := ln.self().Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &DatagramRequest{req}, nil
}

// Close stops listening and rejects the requests that have not been accepted.
// Accepted ones are unaffected.
func (ln *DatagramListener) Close() error { return ln.self().Close() }

func (ln *DatagramListener) self() *Listener {
	if ln == nil {
		return nil
	}
	return ln.listener
}

// A DatagramRequest is a peer's request for a queue pair to send datagrams to.
type DatagramRequest struct{ request *Request }

// PrivateData returns the private data of the request, padded with zeros to the
// transport's maximum.
func (r *DatagramRequest) PrivateData() []byte { return r.request.PrivateData() }

// RemoteAddr returns the peer's address.
func (r *DatagramRequest) RemoteAddr() netip.AddrPort { return r.request.RemoteAddr() }

// LocalAddr returns the local address that received the request.
func (r *DatagramRequest) LocalAddr() netip.AddrPort { return r.request.LocalAddr() }

// Event returns the event that delivered the request.
func (r *DatagramRequest) Event() *Event { return r.request.Event() }

// answer marks the request as answered. It fails if the request was answered
// before. op is the operation in the error.
func (r *DatagramRequest) answer(op string) error {
	if r == nil {
		return (*Request)(nil).answer(op)
	}
	return r.request.answer(op)
}

// Accept creates a queue pair and tells the peer. It does not wait until the
// peer has received the answer. Only the peer's first datagram shows that the
// answer has arrived, and identifies the peer's queue pair. After an error, the
// request is over and the peer has been told. The config may be nil.
func (r *DatagramRequest) Accept(ctx context.Context, config *DatagramConfig) (*DatagramConn, error) {
	if err := r.answer("DatagramRequest.Accept"); err != nil {
		return nil, err
	}
	conn, err := r.accept(ctx, config.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	return conn, nil
}

func (r *DatagramRequest) accept(ctx context.Context, config DatagramConfig) (*DatagramConn, error) {
	if err := ended("accept", ctx); err != nil {
		return nil, errors.Join(err, r.request.drop())
	}
	if err := r.request.leaveListener(); err != nil {
		return nil, errors.Join(err, r.request.drop())
	}
	id := r.request.event.ID
	conn, err := newDatagramConn(r.request.dispatcher, id, config, "DatagramConfig", 0)
	if err != nil {
		return nil, err
	}
	conn.local, conn.remote = id.LocalAddr(), id.RemoteAddr()
	// Closing an ID with a pending request rejects the request.
	if err = ended("accept", ctx); err == nil {
		err = id.Accept(ConnParam{PrivateData: config.PrivateData})
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// AcceptOn accepts the request with the queue pair of an existing DatagramConn,
// so that one DatagramConn can serve any number of peers. The private data may
// have at most 136 bytes. After an error, the request is over and the peer has
// been told.
func (r *DatagramRequest) AcceptOn(conn *DatagramConn, privateData []byte) error {
	if err := r.answer("DatagramRequest.AcceptOn"); err != nil {
		return err
	}
	// The ID is no longer needed: it has no link to the queue pair.
	if err := errors.Join(r.acceptOn(conn, privateData), r.request.drop()); err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	return nil
}

func (r *DatagramRequest) acceptOn(conn *DatagramConn, privateData []byte) error {
	if err := conn.Err(); err != nil {
		return err
	}
	id := r.request.event.ID
	device, err := id.Device()
	if err != nil {
		return err
	}
	if conn.pd.Device() != device || conn.port != id.PortNum() {
		return cerr.Refuse("rdma_accept", id.name(), "the DatagramConn is on another device or port than the request")
	}
	return id.Accept(ConnParam{QPNum: conn.qp.Num(), PrivateData: privateData})
}

// Reject refuses the request and sends the peer at most 136 bytes of private
// data. After an error, the peer has been told as well, but without the data.
// If the peer has given up, Reject returns nil.
func (r *DatagramRequest) Reject(privateData []byte) error {
	if err := r.answer("DatagramRequest.Reject"); err != nil {
		return err
	}
	return r.request.reject(privateData)
}
